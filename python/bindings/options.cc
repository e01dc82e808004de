// The option structs. Python fills them once, through their constructors; choices travel as the words that the
// documentation uses.
#include "bindings.h"

namespace penstock::python {
namespace {

template <typename Enum>
struct Choice {
  std::string_view word;
  Enum value;
};

constexpr Choice<Backend> kBackends[] = {
    {"auto", Backend::kAuto}, {"uring", Backend::kUring}, {"threads", Backend::kThreads}};
constexpr Choice<CachePolicy> kCachePolicies[] = {{"auto", CachePolicy::kAuto},
                                                  {"copy", CachePolicy::kCopy},
                                                  {"direct", CachePolicy::kDirect},
                                                  {"buffered", CachePolicy::kBuffered},
                                                  {"mmap", CachePolicy::kMap}};
constexpr Choice<Landing> kLandings[] = {
    {"auto", Landing::kAuto}, {"in_place", Landing::kInPlace}, {"staged", Landing::kStaged}};
constexpr Choice<WriteMethod> kWriteMethods[] = {{"auto", WriteMethod::kAuto},
                                                 {"direct", WriteMethod::kDirect},
                                                 {"uncached", WriteMethod::kUncached},
                                                 {"buffered", WriteMethod::kBuffered}};
constexpr Choice<SharedTensors> kSharedTensors[] = {{"refuse", SharedTensors::kRefuse},
                                                    {"deduplicate", SharedTensors::kDeduplicate},
                                                    {"duplicate", SharedTensors::kDuplicate}};

template <typename Enum, std::size_t kCount>
Enum choose(const char* what, std::string_view word, const Choice<Enum> (&choices)[kCount]) {
  std::string known;
  for (const auto& choice : choices) {
    if (choice.word == word) return choice.value;
    known += (known.empty() ? "\"" : ", \"") + std::string(choice.word) + "\"";
  }
  throw Error(ErrorKind::kArgument,
              std::string(what) + " must be one of " + known + ", not \"" + std::string(word) + "\"");
}

void make_io_options(IoOptions* self, std::string_view backend, std::size_t block_size, unsigned queue_depth,
                     unsigned threads) {
  new (self) IoOptions{choose("backend", backend, kBackends), block_size, queue_depth, threads};
}

void make_load_options(LoadOptions* self, const std::optional<std::string>& dtype, bool verify, std::string_view cache,
                       std::string_view landing, const IoOptions& io, std::shared_ptr<MemoryPool> pool,
                       std::uint64_t max_buffer) {
  LoadOptions options;
  options.dtype = dtype_from(dtype);
  options.verify = verify;
  options.cache = choose("cache", cache, kCachePolicies);
  options.landing = choose("landing", landing, kLandings);
  options.io = io;
  options.pool = std::move(pool);
  options.max_buffer = max_buffer;
  new (self) LoadOptions(std::move(options));
}

void make_save_options(SaveOptions* self, std::string format, Metadata metadata, std::uint64_t max_shard_size,
                       bool checksums, std::string_view shared, bool durable, std::string_view method,
                       const std::optional<std::string>& dtype, std::uint64_t align_bytes, bool keep_order,
                       bool align_large, std::uint64_t record_alignment, bool record_checksums,
                       const std::optional<nb::bytes>& pickle, const IoOptions& io,
                       const std::optional<std::pair<nb::bytes, nb::bytes>>& around_pickle, bool empty_metadata) {
  SaveOptions options;
  options.dtype = dtype_from(dtype);
  options.flashpack = {.align_bytes = align_bytes, .keep_order = keep_order, .align_large = align_large};
  options.torch.alignment = record_alignment;
  options.torch.checksums = record_checksums;
  if (pickle) options.torch.pickle.emplace(pickle->c_str(), pickle->size());
  if (around_pickle) {
    const auto& [before, behind] = *around_pickle;
    options.torch.around_pickle.emplace(std::string(before.c_str(), before.size()),
                                        std::string(behind.c_str(), behind.size()));
  }
  options.format = std::move(format);
  options.metadata = std::move(metadata);
  options.empty_metadata = empty_metadata;
  options.max_shard_size = max_shard_size;
  options.checksums = checksums;
  options.shared = choose("shared", shared, kSharedTensors);
  options.durable = durable;
  options.method = write_method_from(method);
  options.io = io;
  new (self) SaveOptions(std::move(options));
}

}  // namespace

WriteMethod write_method_from(std::string_view word) {
  return choose("method", word, kWriteMethods);
}

void bind_options(nb::module_& module) {
  nb::class_<IoOptions>(module, "IoOptions", "How bytes are moved; 0 and \"auto\" mean: choose.")
      .def("__init__", &make_io_options, nb::kw_only(), nb::arg("backend") = "auto", nb::arg("block_size") = 0,
           nb::arg("queue_depth") = 0, nb::arg("threads") = 0);

  nb::class_<LoadOptions>(module, "LoadOptions", "What is loaded, and how fast.")
      .def("__init__", &make_load_options, nb::kw_only(), nb::arg("dtype").none(), nb::arg("verify"), nb::arg("cache"),
           nb::arg("landing"), nb::arg("io"), nb::arg("pool").none(), nb::arg("max_buffer"));

  nb::class_<SaveOptions>(module, "SaveOptions", "What is written, how safely, and how fast.")
      .def("__init__", &make_save_options, nb::kw_only(), nb::arg("format"), nb::arg("metadata"),
           nb::arg("max_shard_size"), nb::arg("checksums"), nb::arg("shared"), nb::arg("durable"), nb::arg("method"),
           nb::arg("dtype").none(), nb::arg("align_bytes"), nb::arg("keep_order"), nb::arg("align_large"),
           nb::arg("record_alignment"), nb::arg("record_checksums"), nb::arg("pickle").none(), nb::arg("io"),
           nb::arg("around_pickle") = nb::none(), nb::arg("empty_metadata") = false);
}

}  // namespace penstock::python
