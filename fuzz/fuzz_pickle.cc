// Any bytes as the pickle of a checkpoint whose storages are all as large as it says.
//
// What parses must be consistent: every node points at nodes, tensors lie in their storages, every value can be asked
// for. Reading a part asks for more or says the same as reading all. What does not parse must be refused by an Error of
// one line.
#include "format/memory_source.h"
#include "format/pickle.h"
#include "format/torch_globals.h"
#include "torch_check.h"

namespace penstock {
namespace {

pickle::Options options() {
  pickle::Options options{"f", "data.pkl"};
  options.knows = torch::knows_global;
  options.refuses_foreign = false;
  return options;
}

void check_graph(const pickle::Graph& graph, std::size_t size) {
  const std::size_t count = graph.nodes.size();
  FUZZ_CHECK(graph.consumed <= size && graph.root < count && count <= size);
  for (const pickle::Contents& contents : graph.contents) {
    for (const pickle::NodeId id : contents.items) FUZZ_CHECK(id < count);
    if (!contents.added) continue;
    for (const pickle::NodeId id : contents.added->appended) FUZZ_CHECK(id < count);
    for (const auto& [key, value] : contents.added->entries) FUZZ_CHECK(key < count && value < count);
  }
}

void check_prefixes(std::string_view input, const pickle::Graph& whole) {
  for (std::size_t length = 0; length < whole.consumed; length += 1 + length / 2) {
    bool needs_more = false;
    pickle::parse(input.substr(0, length), options(), &needs_more);
    FUZZ_CHECK(needs_more);
  }
  bool needs_more = false;
  FUZZ_CHECK(pickle::parse(input.substr(0, whole.consumed), options(), &needs_more).root == whole.root);
  FUZZ_CHECK(!needs_more);
}

// The storages one after the other.
void check_tree(pickle::Graph graph) {
  torch::Checkpoint checkpoint;
  checkpoint.format = torch::kZipFormat;
  checkpoint.tree = std::make_unique<const torch::Tree>(std::move(graph), "f");
  std::uint64_t size = 0;
  for (const torch::Storage& storage : checkpoint.tree->storages()) {
    checkpoint.storage_offsets.push_back(size);
    if (__builtin_add_overflow(size, storage.nbytes(), &size)) return;
  }
  fuzz::check_values(*checkpoint.tree);
  const Layout layout = torch::make_layout(checkpoint, "f");
  fuzz::check_layout(layout, size);
  fuzz::check_packed(layout, MemorySource("", "f"));
}

void check(std::string_view input) {
  try {
    pickle::Graph graph = pickle::parse(input, options());
    check_graph(graph, input.size());
    // An entry of the memo may name a place that lies beyond a part.
    try {
      check_prefixes(input, graph);
    } catch (const Error& error) {
      FUZZ_CHECK(std::string_view(error.what()).find("memo entry") != std::string_view::npos);
    }
    check_tree(std::move(graph));
  } catch (const Error& error) {
    fuzz::check_message(error, /*may_be_unsupported=*/true);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  penstock::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
