// parse_torch_chunks(): the pickle of torch's FileSystemWriter, as data. What torch would make of it are plain records:
// an object of one of its classes is a node that says which class, with a dict of its fields.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "format/chunks.h"
#include "format/pickle.h"

namespace penstock {
namespace {

using namespace std::string_view_literals;
using pickle::Graph;
using pickle::Kind;
using pickle::NodeId;

constexpr std::uint64_t kMaxMetadataSize = std::uint64_t{1} << 30;
constexpr std::string_view kOfMetadata = "torch.distributed.checkpoint.metadata ";

constexpr std::size_t kFreeSteps = 1 << 20;
constexpr std::size_t kStepsPerByte = 16;

class MetadataReader {
 public:
  MetadataReader(const Graph& graph, std::string_view path)
      : graph_(graph),
        path_(path),
        steps_left_(kFreeSteps + kStepsPerByte * static_cast<std::size_t>(graph.consumed)) {}

  ChunkedCheckpoint read() {
    if (!is_a(graph_.root, "Metadata")) fail("is no metadata of torch's");
    read_places(field(graph_.root, "storage_data"));
    for (const auto& [key, entry] : entries(field(graph_.root, "state_dict_metadata"))) {
      const std::string_view name = string(key);
      if (!names_.insert(name).second) fail("{} is there twice", in_quotes(name));
      if (is_a(entry, "BytesStorageMetadata")) {
        checkpoint_.objects.emplace_back(name);
      } else {
        read_tensor(name, entry);
      }
    }
    return std::move(checkpoint_);
  }

 private:
  using Stretch = std::pair<std::uint64_t, std::uint64_t>;

  struct Place {
    std::uint32_t file = 0;
    Stretch stretch;
  };

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) const {
    throw_format(path_, "{}", fmt::format(message, std::forward<Args>(args)...));
  }

  bool is_a(NodeId id, std::string_view name) const { return graph_.calls(id, std::string(kOfMetadata).append(name)); }

  // Fields, names and shapes that are shared may be looked at again and again, and no longer than that.
  void step(std::size_t count = 1) {
    if (count > steps_left_) fail("says the same again and again");
    steps_left_ -= count;
  }

  // What BUILD gave an object.
  NodeId state(NodeId id) const {
    if (graph_.kind(id) != Kind::kCall || graph_.items(id).size() != 3) fail("an object has no state");
    return graph_.items(id)[2];
  }

  std::span<const std::pair<NodeId, NodeId>> entries(NodeId id) const {
    if (graph_.kind(id) != Kind::kDict) fail("expected a dict");
    return graph_.entries(id);
  }

  // pickle::kNoNode: there is none.
  NodeId find_field(NodeId object, std::string_view name) {
    for (const auto& [key, value] : entries(state(object))) {
      step();
      if (graph_.kind(key) == Kind::kString && graph_.text(key) == name) return value;
    }
    return pickle::kNoNode;
  }

  NodeId field(NodeId object, std::string_view name) {
    const NodeId found = find_field(object, name);
    if (found == pickle::kNoNode) fail("an object has no {}", in_quotes(name));
    return found;
  }

  std::string_view string(NodeId id) {
    if (graph_.kind(id) != Kind::kString) fail("expected a string");
    step(graph_.text(id).size());
    return graph_.text(id);
  }

  std::int64_t integer(NodeId id) const {
    if (graph_.kind(id) != Kind::kInteger || graph_.node(id).integer < 0) fail("expected a number from 0 on");
    return graph_.node(id).integer;
  }

  // torch.Size((2, 3)), or what else holds numbers.
  Shape shape(NodeId id) {
    if (graph_.calls(id, "torch Size")) {
      const NodeId arguments = graph_.items(id)[1];
      if (graph_.kind(arguments) != Kind::kTuple || graph_.items(arguments).size() != 1) fail("expected a torch.Size");
      id = graph_.items(arguments)[0];
    }
    if (graph_.kind(id) != Kind::kTuple && graph_.kind(id) != Kind::kList) fail("expected a shape");
    if (graph_.items(id).size() > kMostChunkDimensions) fail("a shape of {} dimensions", graph_.items(id).size());
    step(graph_.items(id).size());
    Shape result;
    for (const NodeId item : graph_.items(id)) result.push_back(integer(item));
    return result;
  }

  void read_places(NodeId id) {
    std::map<std::string, std::uint32_t, std::less<>> files;
    for (const auto& [index, info] : entries(id)) {
      const std::string_view name = string(field(index, "fqn"));
      const NodeId offset = find_field(index, "offset");
      if (offset == pickle::kNoNode || graph_.kind(offset) == Kind::kNone) continue;  // a value that is no tensor
      const NodeId transforms = find_field(info, "transform_descriptors");
      if (transforms != pickle::kNoNode && graph_.kind(transforms) != Kind::kNone) {
        throw_unsupported(path_, "{} was written by an extension of torch's", in_quotes(name));
      }
      const std::string_view file = string(field(info, "relative_path"));
      if (file.empty() || file == "." || file == ".." || file.find_first_of("/\0"sv) != std::string_view::npos) {
        fail("{} is in {}, which is not a plain file name", in_quotes(name), in_quotes(file));
      }
      const auto [known, is_new] = files.emplace(file, static_cast<std::uint32_t>(files.size()));
      if (is_new) checkpoint_.files.emplace_back(file);
      const Stretch stretch{integer(field(info, "offset")), integer(field(info, "length"))};
      places_.emplace(std::pair(name, shape(offset)), Place{known->second, stretch});
    }
  }

  DType dtype(NodeId properties, std::string_view name) {
    const NodeId fields = state(properties);
    const bool is_tuple = graph_.kind(fields) == Kind::kTuple && !graph_.items(fields).empty();
    const NodeId type = is_tuple ? graph_.items(fields)[0] : field(properties, "dtype");
    if (graph_.kind(type) != Kind::kGlobal) fail("tensor {} has no dtype", in_quotes(name));
    std::string_view text = graph_.text(type);
    constexpr std::string_view kOfTorch = "torch ";
    if (text.starts_with(kOfTorch)) text.remove_prefix(kOfTorch.size());
    const auto known = parse_torch_dtype(text);
    if (!known) throw_unsupported(path_, "tensor {} has the dtype {}", in_quotes(name), in_quotes(text));
    return *known;
  }

  void read_tensor(std::string_view name, NodeId entry) {
    if (!is_a(entry, "TensorStorageMetadata")) fail("{} is no tensor and no object", in_quotes(name));
    ChunkedTensor tensor;
    tensor.name = name;
    tensor.dtype = dtype(field(entry, "properties"), name);
    tensor.shape = shape(field(entry, "size"));
    const NodeId chunks = field(entry, "chunks");
    if (graph_.kind(chunks) != Kind::kList) fail("the chunks of tensor {} are no list", in_quotes(name));
    for (const NodeId each : graph_.items(chunks)) {
      TensorChunk chunk;
      chunk.offsets = shape(field(each, "offsets"));
      chunk.shape = shape(field(each, "sizes"));
      const auto place = places_.find(std::pair(name, chunk.offsets));
      if (place == places_.end()) fail("does not say where {} is", in_quotes(name));
      chunk.file = place->second.file;
      chunk.stretch = place->second.stretch;
      tensor.chunks.push_back(std::move(chunk));
    }
    check_chunks(tensor, path_);
    checkpoint_.tensors.push_back(std::move(tensor));
  }

  const Graph& graph_;
  const std::string_view path_;
  std::size_t steps_left_;
  std::set<std::string_view> names_;  // these are the graph's
  std::map<std::pair<std::string_view, Shape>, Place> places_;
  ChunkedCheckpoint checkpoint_;
};

}  // namespace

ChunkedCheckpoint parse_torch_chunks(const ByteSource& source) {
  const std::uint64_t size = source.size();
  if (size > kMaxMetadataSize) throw_format(source.path(), "is larger than {} bytes", kMaxMetadataSize);
  std::string text(size, '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  pickle::Options options;
  options.path = source.path();
  options.what = "the pickle";
  options.refuses_foreign = false;  // a class that is not known is a name, and no more
  options.knows = [](std::string_view) { return true; };
  const Graph graph = pickle::parse(text, options);
  return MetadataReader(graph, source.path()).read();
}

}  // namespace penstock
