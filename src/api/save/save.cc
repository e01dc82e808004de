#include "api/save/save.h"

#include <algorithm>
#include <utility>

#include "api/save/set_content.h"
#include "memory/arena.h"
#include "transfer/session.h"

namespace penstock {
namespace {

std::string name_landing(const Stats& stats) {
  const std::uint64_t moved = stats.bytes_direct + stats.bytes_buffered;
  return stats.bytes_copied == moved ? "staged" : stats.bytes_copied * 20 < moved ? "straight" : "mixed";
}

}  // namespace

Save::Save(Writer::State& state) : state_(state) {
  state.begin_commit();
  resolve_shared(state);
  SetContent set = assign_to_files(state);
  contents_ = std::move(set.files);
  index_ = std::move(set.index);
  index_path_ = index_path_of(state);
  add_phase("build_index", watch_.seconds());
}

std::vector<std::filesystem::path> Save::targets() const {
  std::vector<std::filesystem::path> paths;
  for (const FileContent& content : contents_) paths.push_back(content.path);
  if (contents_.size() > 1) paths.push_back(index_path_);
  return paths;
}

void Save::prepare(bool snapshot) {
  clear_leftovers_of(state_.path);
  for (FileContent& content : std::exchange(contents_, {})) {
    files_.push_back(std::make_unique<FileSave>(std::move(content), state_.options, snapshot));
    total_ += files_.back()->layout.file_size();
    add_phase("build_index", files_.back()->layout_seconds);
    add_phase("reserve", files_.back()->reserve_seconds);
  }
}

void Save::write() {
  settle_streams(state_);
  if (files_.size() > 1) index_file_.emplace(NewFile::create(index_path_));
  const Stopwatch watch;
  DeviceUse& devices = state_.devices;
  devices.start_gds(state_.options.gds, "");
  const Settings settings = decide_settings(state_.options.io, total_, Direction::kWrite, devices.passage());
  Crew crew(settings, devices.staging(settings, host_pool(nullptr)));
  for (const auto& file : files_) {
    file->writer.use_gds(devices.gds());
    file->write(crew, [this](std::uint64_t done) { return report(done); });
    done_before_ += file->layout.file_size();
  }
  crew.stop();
  describe_crew(crew, stats_);
  add_phase("write", watch.seconds());
  leave_devices();
}

void Save::leave_devices() {
  state_.devices.describe(stats_);
  state_.devices = {};
  for (const auto& file : files_) {
    file->writer.use_gds(nullptr);
    for (Origin& origin : file->content.origins) origin.device = nullptr;
  }
}

void Save::finish() {
  const Stopwatch sync_watch;
  for (const auto& file : files_) {
    file->writer.finish(file->layout.file_size(), state_.options.durable, [this] { return report(0); });
  }
  stats_.sync_seconds = sync_watch.seconds();
  add_phase("sync", stats_.sync_seconds);
}

Stats Save::publish(std::span<const std::filesystem::path> keep) {
  finish();
  const Stopwatch rename_watch;
  give_names(keep);
  add_phase("rename", rename_watch.seconds());
  const WriteRoute& route = files_.front()->writer.route();
  stats_.bytes = state_.nbytes;
  stats_.tensors = state_.tensors.size();
  stats_.path = route.direct ? "direct" : "buffered";
  stats_.landing = name_landing(stats_);
  stats_.reason = describe(route.reason);
  stats_.seconds = watch_.seconds();
  return std::move(stats_);
}

void Save::give_names(std::span<const std::filesystem::path> keep) {
  const SetPublication publication{state_.path, state_.options.durable, keep, after_step_};
  std::vector<NewFile*> files;
  for (const auto& file : files_) files.push_back(&file->writer.file());
  publish_files(publication, files, index_, index_file_, state_.nbytes);
}

bool Save::report(std::uint64_t done) const {
  const ProgressFunction& progress = state_.options.progress;
  return !progress || progress({done_before_ + done, total_, watch_.seconds()});
}

void Save::add_phase(std::string_view name, double seconds) {
  std::vector<Phase>& phases = stats_.phases;
  const auto known = std::find_if(phases.begin(), phases.end(), [&](const Phase& each) { return each.name == name; });
  if (known != phases.end()) {
    known->seconds += seconds;
  } else {
    phases.push_back({std::string(name), seconds});
  }
}

Stats save(Writer::State& state) {
  Save steps(state);
  steps.prepare();
  steps.write();
  return steps.publish();
}

}  // namespace penstock
