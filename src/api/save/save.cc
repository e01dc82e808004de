#include "api/save/save.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "memory/arena.h"
#include "transfer/session.h"

namespace penstock {
namespace {

std::vector<FileContent> assign_to_files(const Writer::State& state, ShardIndex& index) {
  std::vector<TensorSpec> specs;
  for (const AddedTensor& tensor : state.tensors) specs.push_back(tensor.spec);
  std::vector<std::uint32_t> assignment(specs.size(), 0);
  if (state.options.max_shard_size > 0) assignment = assign_shards(specs, state.options.max_shard_size);
  const std::uint32_t count = assignment.empty() ? 1 : *std::max_element(assignment.begin(), assignment.end()) + 1;
  std::vector<FileContent> files(count);
  for (std::uint32_t number = 0; number < count; ++number) {
    const std::string name = state.path.filename().native();
    index.files.push_back(count == 1 ? name : shard_file_name(name, number, count));
    files[number].path = state.path.parent_path() / index.files.back();
    files[number].metadata = state.options.metadata;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    FileContent& file = files[assignment[i]];
    index.weight_map.emplace(specs[i].name, assignment[i]);
    file.specs.push_back(std::move(specs[i]));
    file.origins.push_back(state.tensors[i].origin);
  }
  return files;
}

// Tensor names must be unique over all files; within one the format checks.
void refuse_duplicate_names(const Writer::State& state, const ShardIndex& index) {
  if (index.weight_map.size() == state.tensors.size()) return;
  std::map<std::string_view, int> seen;
  for (const AddedTensor& tensor : state.tensors) {
    if (++seen[tensor.spec.name] == 2) {
      throw_argument("{}: tensor {} was added twice", state.path.native(), in_quotes(tensor.spec.name));
    }
  }
}

void remove_stale_index(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)))
    std::filesystem::remove(path, ignored);
}

std::string name_landing(const Stats& stats) {
  const std::uint64_t moved = stats.bytes_direct + stats.bytes_buffered;
  return stats.bytes_copied == moved ? "staged" : stats.bytes_copied * 20 < moved ? "straight" : "mixed";
}

}  // namespace

Save::Save(Writer::State& state) : state_(state) {
  state.begin_commit();
  resolve_shared(state);
  contents_ = assign_to_files(state, index_);
  refuse_duplicate_names(state, index_);
  index_path_ = state.path.parent_path() / index_file_name(state.path.filename().native());
  add_phase("build_index", watch_.seconds());
}

std::vector<std::filesystem::path> Save::targets() const {
  std::vector<std::filesystem::path> paths;
  for (const FileContent& content : contents_) paths.push_back(content.path);
  if (contents_.size() > 1) paths.push_back(index_path_);
  return paths;
}

void Save::prepare(bool snapshot) {
  for (FileContent& content : std::exchange(contents_, {})) {
    files_.push_back(std::make_unique<FileSave>(std::move(content), state_.options, snapshot));
    total_ += files_.back()->layout.file_size();
    add_phase("build_index", files_.back()->layout_seconds);
    add_phase("reserve", files_.back()->reserve_seconds);
  }
}

void Save::write() {
  settle_streams(state_);
  if (files_.size() > 1) write_index();
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

// Written, but not yet under its name.
void Save::write_index() {
  const std::string text = encode_shard_index(index_, state_.nbytes);
  index_file_.emplace(NewFile::create(index_path_));
  index_file_->write(0, text.data(), text.size());
  index_file_->finish(text.size(), state_.options.durable);
}

Stats Save::publish(bool keep_index) {
  const Stopwatch sync_watch;
  for (const auto& file : files_) {
    file->writer.finish(file->layout.file_size(), state_.options.durable, [this] { return report(0); });
  }
  stats_.sync_seconds = sync_watch.seconds();
  add_phase("sync", stats_.sync_seconds);
  const Stopwatch rename_watch;
  give_names(keep_index);
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

// The index last. When one fails, those that got a name nobody had before lose it again.
void Save::give_names(bool keep_index) {
  std::vector<NewFile*> files;
  for (const auto& file : files_) files.push_back(&file->writer.file());
  if (index_file_) files.push_back(&*index_file_);
  std::size_t published = 0;
  try {
    for (; published < files.size(); ++published) files[published]->publish();
  } catch (...) {
    while (published > 0) files[--published]->withdraw();
    throw;
  }
  if (!index_file_ && !keep_index) remove_stale_index(index_path_);
  if (!state_.options.durable) return;
  for (NewFile* file : files) file->sync_name();
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
