#include "penstock/file_set.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "api/save/file_set_state.h"
#include "api/save/set_publish.h"
#include "api/save/stale_seal.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/name_hash.h"
#include "format/shards.h"
#include "io/closing.h"
#include "io/names.h"
#include "memory/arena.h"
#include "transfer/session.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Sorts the tensors by offset; refuses those that lie over each other, over the header or behind the end.
void check_file_layout(FileSetFile& file) {
  std::stable_sort(file.tensors.begin(), file.tensors.end(),
                   [](const FileSetTensor& a, const FileSetTensor& b) { return a.offset < b.offset; });
  std::uint64_t end = file.header.size();
  for (const FileSetTensor& tensor : file.tensors) {
    const auto next = checked_add(tensor.offset, tensor.nbytes);
    if (tensor.offset >= end && next && *next <= file.size) {
      end = *next;
      continue;
    }
    throw_argument("{}: tensor {} of {} bytes at offset {} does not fit between byte {} and the end, {}",
                   file.path.native(), in_quotes(tensor.name), tensor.nbytes, tensor.offset, end, file.size);
  }
  if (file.size == 0 || file.header.size() > file.size) {
    throw_argument("{}: a header of {} bytes in a file of {}", file.path.native(), file.header.size(), file.size);
  }
}

void check_file_layouts(std::vector<FileSetFile>& files, const Writer::State& work) {
  if (files.empty()) throw_argument("{}: a set of no files", work.path.native());
  std::set<fs::path> paths;
  std::set<std::string_view> names;
  for (FileSetFile& file : files) {
    if (!paths.insert(file.path.lexically_normal()).second) {
      throw_argument("{}: is two files of one set", file.path.native());
    }
    check_file_layout(file);
    for (const FileSetTensor& tensor : file.tensors) {
      if (names.insert(tensor.name).second) continue;
      throw_argument("{}: tensor {} is twice in the set", file.path.native(), in_quotes(tensor.name));
    }
  }
}

// What the files need on one filesystem, which is known by one of them.
struct Need {
  fs::path path;
  std::uint64_t nbytes = 0;
};

bool has_room(const Need& need, std::uint64_t min_free_bytes, std::uint64_t& available) {
  std::error_code unknown;
  const fs::space_info space = fs::space(folder_of(need.path), unknown);
  available = space.available;
  return unknown || (space.available >= min_free_bytes && space.available - min_free_bytes >= need.nbytes);
}

void check_free_space(const std::vector<FileSetFile>& files, std::uint64_t min_free_bytes) {
  std::map<dev_t, Need> needs;
  for (const FileSetFile& file : files) {
    struct stat status {};
    if (::stat(folder_of(file.path).c_str(), &status) != 0) continue;  // whoever makes the file says what is wrong
    Need& need = needs.try_emplace(status.st_dev, Need{file.path, 0}).first->second;
    need.nbytes += file.size;
  }
  std::uint64_t available = 0;
  for (const auto& [device, need] : needs) {
    if (has_room(need, min_free_bytes, available)) continue;
    wait_for_closing();  // what earlier saves replaced may still be on its way out
    if (has_room(need, min_free_bytes, available)) continue;
    throw Error(ErrorKind::kNoSpace,
                fmt::format("{}: the files need {} bytes and {} are to stay free, the filesystem has {} available",
                            need.path.native(), need.nbytes, min_free_bytes, available),
                ENOSPC);
  }
}

}  // namespace

FileSet::State::State(Writer writer, std::vector<FileSetFile> files, std::uint64_t min_free_bytes)
    : writer_(std::move(writer)), work_(WriterAccess::state(writer_)), files_(std::move(files)) {
  work_.begin_commit();
  check_file_layouts(files_, work_);
  find_devices(work_);
  if (!work_.tensors.empty()) match_tensors();
  clear_leftovers_of(work_.path);
  check_free_space(files_, min_free_bytes);
  make_files();
}

// The bytes of each tensor of the layout.
void FileSet::State::match_tensors() {
  NameMap<const AddedTensor*> added;
  for (const AddedTensor& tensor : work_.tensors) added.emplace(tensor.spec.name, &tensor);
  for (const FileSetFile& file : files_) {
    std::vector<Origin>& origins = origins_.emplace_back();
    for (const FileSetTensor& tensor : file.tensors) {
      const auto found = added.find(tensor.name);
      if (found == added.end()) {
        throw_argument("{}: tensor {} was not added", file.path.native(), in_quotes(tensor.name));
      }
      const TensorSpec& spec = found->second->spec;
      if (spec.nbytes != tensor.nbytes) {
        throw_argument("{}: tensor {} has {} bytes, and its place in the file {}", file.path.native(),
                       in_quotes(tensor.name), spec.nbytes, tensor.nbytes);
      }
      origins.push_back(by_whole_elements(found->second->origin, dtype_bits(spec.dtype) / 8));
    }
  }
}

void FileSet::State::make_files() {
  WriteRequest request = write_request(work_.options);
  const bool is_mapped = origins_.empty();
  if (is_mapped) request.method = WriteMethod::kBuffered;
  writers_.reserve(files_.size());
  for (const FileSetFile& file : files_) {
    FileWriter& writer = writers_.emplace_back(NewFile::create(file.path), request, file.size);
    total_ += file.size;
    // Whatever its size: these have to fit together.
    if (is_mapped) {
      writer.file().allocate(file.size);
    } else {
      writer.file().reserve(align_up(file.size, writer.alignment()));
    }
  }
  filled_.resize(files_.size());
}

std::vector<WritePart> FileSet::State::parts_of(std::size_t file) const {
  const FileSetFile& layout = files_[file];
  std::vector<WritePart> parts;
  const auto* header = reinterpret_cast<const std::byte*>(layout.header.data());
  parts.push_back({0, layout.header.size(), {header, {}}});
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    parts.push_back({layout.tensors[i].offset, layout.tensors[i].nbytes, origins_[file][i]});
  }
  add_zero_parts(parts, layout.size);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const WritePart& a, const WritePart& b) { return a.offset < b.offset; });
  return parts;
}

void FileSet::State::write() {
  if (origins_.empty()) throw_argument("{}: no tensors were added to be written", work_.path.native());
  wait_for_streams(work_);
  settle_streams(work_);
  DeviceUse& devices = work_.devices;
  devices.start_gds(work_.options.gds, "");
  const Settings settings = decide_settings(work_.options.io, total_, Direction::kWrite, devices.passage());
  Crew crew(settings, devices.staging(settings, host_pool(nullptr)));
  for (std::size_t i = 0; i < files_.size(); ++i) {
    writers_[i].use_gds(devices.gds());
    writers_[i].write(crew, parts_of(i), {}, [this](std::uint64_t done) { return report(done); });
    writers_[i].use_gds(nullptr);
    done_before_ += files_[i].size;
    filled_[i] = true;
  }
  crew.stop();
  origins_.clear();
  devices = {};
}

int FileSet::State::descriptor(std::size_t file) {
  if (!work_.tensors.empty() || file >= files_.size()) {
    throw_argument("{}: file {} of {} is not for others to fill", work_.path.native(), file, files_.size());
  }
  const FileSetFile& layout = files_[file];
  writers_[file].file().write(0, layout.header.data(), layout.header.size());
  filled_[file] = true;
  return writers_[file].file().fd();
}

void FileSet::State::finish() {
  if (writers_.empty()) throw_argument("{}: the set was published before", work_.path.native());
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (!filled_[i]) throw_argument("{}: nothing was written to it", files_[i].path.native());
    writers_[i].finish(files_[i].size, work_.options.durable, [this] { return report(0); });
  }
}

std::vector<fs::path> FileSet::State::publish_set() {
  finish();
  SetPublication publication{work_.path, work_.options.durable, {}, after_step};
  ShardIndex index;
  std::vector<NewFile*> new_files;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const fs::path& path = files_[i].path;
    if (folder_of(path) != folder_of(work_.path)) {
      throw_argument("{}: is not in the directory of its set, {}", path.native(), work_.path.native());
    }
    index.files.push_back(path.filename().native());
    for (const FileSetTensor& tensor : files_[i].tensors) {
      index.weight_map.emplace(tensor.name, static_cast<std::uint32_t>(i));
    }
    new_files.push_back(&writers_[i].file());
  }
  publication.replaced = index.files;
  NewFile index_file = NewFile::create(folder_of(work_.path) / index_file_name(work_.path.filename().native()));
  publish_shards(publication, new_files, index, index_file, nbytes());
  writers_.clear();
  std::vector<fs::path> paths;
  for (const std::string& name : index.files) paths.push_back(work_.path.parent_path() / name);
  return paths;
}

void FileSet::State::publish_each() {
  finish();
  name_each();
  std::map<fs::path, std::set<std::string>> folders;
  for (const FileSetFile& file : files_) folders[folder_of(file.path)].insert(file.path.filename().native());
  for (FileWriter& writer : writers_) {
    if (work_.options.durable) writer.file().sync_named();
    const auto found = folders.find(folder_of(writer.file().path()));
    if (found == folders.end()) continue;
    const int directory = writer.file().directory();
    if (work_.options.durable) sync_directory(directory, writer.file().path(), kSyncOfNameFailed);
    remove_dead_temporaries(directory,
                            [&](std::string_view name) { return found->second.contains(std::string(name)); });
    folders.erase(found);
  }
  writers_.clear();
}

// Where one fails, names that were free before are again.
void FileSet::State::name_each() {
  std::size_t named = 0;
  try {
    for (; named < writers_.size(); ++named) {
      remove_seal(writers_[named].file());
      writers_[named].file().publish();
      if (after_step) after_step("file named");
    }
  } catch (...) {
    while (named > 0) writers_[--named].file().withdraw();
    throw;
  }
}

std::uint64_t FileSet::State::nbytes() const {
  std::uint64_t sum = 0;
  for (const FileSetFile& file : files_) {
    for (const FileSetTensor& tensor : file.tensors) sum += tensor.nbytes;
  }
  return sum;
}

bool FileSet::State::report(std::uint64_t done) const {
  const ProgressFunction& progress = work_.options.progress;
  return !progress || progress({done_before_ + done, total_, watch_.seconds()});
}

FileSet::FileSet(Writer writer, std::vector<FileSetFile> files, std::uint64_t min_free_bytes)
    : state_(of_this_process(std::make_unique<State>(std::move(writer), std::move(files), min_free_bytes))) {}
FileSet::FileSet(FileSet&&) noexcept = default;
FileSet& FileSet::operator=(FileSet&&) noexcept = default;
FileSet::~FileSet() = default;

void FileSet::write() {
  state_->write();
}

int FileSet::descriptor(std::size_t file) {
  return state_->descriptor(file);
}

std::vector<std::filesystem::path> FileSet::publish_set() {
  return state_->publish_set();
}

void FileSet::publish_each() {
  state_->publish_each();
}

FileSet::State& FileSetAccess::state(FileSet& set) {
  return *set.state_;
}

}  // namespace penstock
