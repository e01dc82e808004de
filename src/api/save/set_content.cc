#include "api/save/set_content.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace penstock {
namespace {

void refuse_duplicate_names(const Writer::State& state, const ShardIndex& index) {
  if (index.weight_map.size() == state.tensors.size()) return;
  std::map<std::string_view, int> seen;
  for (const AddedTensor& tensor : state.tensors) {
    if (++seen[tensor.spec.name] == 2) {
      throw_argument("{}: tensor {} was added twice", state.path.native(), in_quotes(tensor.spec.name));
    }
  }
}

}  // namespace

SetContent assign_to_files(const Writer::State& state) {
  std::vector<TensorSpec> specs;
  for (const AddedTensor& tensor : state.tensors) specs.push_back(tensor.spec);
  std::vector<std::uint32_t> assignment(specs.size(), 0);
  if (state.options.max_shard_size > 0) assignment = assign_shards(specs, state.options.max_shard_size);
  const std::uint32_t count = assignment.empty() ? 1 : *std::max_element(assignment.begin(), assignment.end()) + 1;
  SetContent content;
  content.files.resize(count);
  for (std::uint32_t number = 0; number < count; ++number) {
    const std::string name = state.path.filename().native();
    content.index.files.push_back(count == 1 ? name : shard_file_name(name, number, count));
    content.files[number].path = state.path.parent_path() / content.index.files.back();
    content.files[number].metadata = state.options.metadata;
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    FileContent& file = content.files[assignment[i]];
    content.index.weight_map.emplace(specs[i].name, assignment[i]);
    file.origins.push_back(by_whole_elements(state.tensors[i].origin, dtype_bits(specs[i].dtype) / 8));
    file.specs.push_back(std::move(specs[i]));
  }
  refuse_duplicate_names(state, content.index);
  return content;
}

std::filesystem::path index_path_of(const Writer::State& state) {
  return state.path.parent_path() / index_file_name(state.path.filename().native());
}

}  // namespace penstock
