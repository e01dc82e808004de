#include "penstock/set_writer.h"

#include <optional>
#include <utility>

#include "api/save/save.h"
#include "base/error.h"

namespace penstock {
namespace {

// One file of the set. Immovable: the save looks into the writer.
struct SetMember {
  explicit SetMember(Writer collected) : writer(std::move(collected)), save(WriterAccess::state(writer)) {}

  NewFile& file() { return save.files().front()->writer.file(); }

  Writer writer;
  Save save;
};

}  // namespace

struct SetWriter::State {
  // Which tensors are in which file, by the names that shards have where nothing is in their way.
  ShardIndex make_index(const std::map<std::string, std::string>& metadata) const;
  std::uint64_t nbytes() const;

  std::filesystem::path path;
  bool durable = true;
  std::vector<std::unique_ptr<SetMember>> members;
};

ShardIndex SetWriter::State::make_index(const std::map<std::string, std::string>& metadata) const {
  ShardIndex index;
  index.json_metadata = {metadata.begin(), metadata.end()};
  const std::string name = path.filename().native();
  const auto count = static_cast<std::uint32_t>(members.size());
  for (std::uint32_t number = 0; number < count; ++number) {
    index.files.push_back(count == 1 ? name : shard_file_name(name, number, count));
    for (const AddedTensor& tensor : WriterAccess::state(members[number]->writer).tensors) {
      if (!index.weight_map.emplace(tensor.spec.name, number).second) {
        throw_argument("{}: tensor {} is in two files", path.native(), in_quotes(tensor.spec.name));
      }
    }
  }
  return index;
}

std::uint64_t SetWriter::State::nbytes() const {
  std::uint64_t sum = 0;
  for (const auto& member : members) sum += member->writer.nbytes();
  return sum;
}

SetWriter::SetWriter(std::filesystem::path path, bool durable)
    : state_(std::make_unique<State>(State{std::move(path), durable, {}})) {}
SetWriter::SetWriter(SetWriter&&) noexcept = default;
SetWriter& SetWriter::operator=(SetWriter&&) noexcept = default;
SetWriter::~SetWriter() = default;

void SetWriter::add(Writer writer) {
  Writer::State& work = WriterAccess::state(writer);
  if (work.options.max_shard_size > 0) throw_argument("{}: a file of a set is not split", work.path.native());
  work.path = state_->path.parent_path() / work.path.filename();
  work.options.durable = state_->durable;
  if (state_->members.empty()) clear_leftovers_of(state_->path);
  find_devices(work);
  wait_for_streams(work);
  auto member = std::make_unique<SetMember>(std::move(writer));
  member->save.prepare();
  member->save.write();
  member->save.finish();
  state_->members.push_back(std::move(member));
}

std::size_t SetWriter::count() const noexcept {
  return state_->members.size();
}

std::vector<std::filesystem::path> SetWriter::publish(const std::map<std::string, std::string>& metadata) {
  State& state = *state_;
  if (state.members.empty()) throw_argument("{}: a set of no files", state.path.native());
  ShardIndex index = state.make_index(metadata);
  const SetPublication publication{state.path, state.durable};
  if (state.members.size() == 1) {
    publish_single(publication, state.members.front()->file(), index, state.nbytes());
  } else {
    std::vector<NewFile*> files;
    for (const auto& member : state.members) files.push_back(&member->file());
    NewFile index_file = NewFile::create(state.path.parent_path() / index_file_name(state.path.filename().native()));
    publish_shards(publication, files, index, index_file, state.nbytes());
  }
  state.members.clear();
  std::vector<std::filesystem::path> paths;
  for (const std::string& name : index.files) paths.push_back(state.path.parent_path() / name);
  return paths;
}

}  // namespace penstock
