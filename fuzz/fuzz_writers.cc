// Random tensors, names and options through every encoder, and back through its parser: what was written must be read
// again as it was, or be refused before anything is written. The last byte chooses the writer.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "check.h"
#include "format/chunks.h"
#include "format/detect.h"
#include "format/memory_source.h"
#include "format/seal.h"
#include "format/set_change.h"
#include "format/shards.h"

namespace penstock {
namespace {

class Input : public FuzzedDataProvider {
 public:
  using FuzzedDataProvider::FuzzedDataProvider;

  std::uint64_t below(std::uint64_t limit) { return ConsumeIntegralInRange<std::uint64_t>(0, limit - 1); }
  bool yes() { return ConsumeBool(); }

  // Made of pieces, so that it is UTF-8, and often equal to another one.
  std::string name() {
    static constexpr std::array<const char*, 12> kPieces = {"a",  "b",    ".",      "0",      "\"",         "\\",
                                                            "\n", "\x01", "\u00e9", "\u20ac", "\U0001d11e", "-"};
    std::string text;
    for (std::uint64_t i = below(4); i > 0; --i) text += kPieces[below(kPieces.size())];
    return text;
  }

  // A name of a file in a directory.
  std::string plain_name() { return "f" + std::to_string(below(1000)); }

  Shape shape() {
    Shape shape;
    for (std::uint64_t i = below(4); i > 0; --i) shape.push_back(static_cast<std::int64_t>(below(5)));
    return shape;
  }

  TensorSpec spec() {
    TensorSpec spec{name(), static_cast<DType>(below(kDTypeCount)), shape()};
    while (try_tensor_nbytes(spec.dtype, spec.shape).problem != nullptr) spec.dtype = DType::kU8;
    spec.nbytes = try_tensor_nbytes(spec.dtype, spec.shape).nbytes;
    return spec;
  }

  Metadata metadata() {
    Metadata metadata;
    for (std::uint64_t i = below(4); i > 0; --i) metadata[name()] = name();
    return metadata;
  }
};

// A file as the plan has it: tensors of 'x', which overwrite nothing.
std::string file_of(const FilePlan& plan, const std::vector<TensorSpec>& specs) {
  std::string file(static_cast<std::size_t>(plan.file_size), '\0');
  std::string taken(file.size(), '\0');
  const auto put = [&](std::uint64_t offset, std::string_view bytes) {
    FUZZ_CHECK(offset <= file.size() && bytes.size() <= file.size() - offset);
    FUZZ_CHECK(taken.find_first_not_of('\0', offset) >= offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
    std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(offset), bytes.size(), '\1');
  };
  const auto text = [](const std::vector<std::byte>& bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  // From the end of the file to its start, so that what is taken lies behind what is put.
  std::map<std::uint64_t, std::string> parts;
  const auto add = [&](std::uint64_t offset, std::string_view bytes) {
    if (!bytes.empty()) FUZZ_CHECK(parts.emplace(offset, bytes).second);
  };
  add(0, text(plan.prefix));
  add(plan.file_size - plan.suffix.size(), text(plan.suffix));
  for (const Literal& literal : plan.literals) add(literal.offset, text(literal.bytes));
  for (std::size_t i = 0; i < specs.size(); ++i) add(plan.offsets[i], std::string(specs[i].nbytes, 'x'));
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) put(part->first, part->second);
  return file;
}

void check_same(const Layout& layout, const std::vector<TensorSpec>& specs, const FilePlan& plan) {
  FUZZ_CHECK(layout.tensors.size() == specs.size());
  std::map<std::string_view, const TensorInfo*> found;
  for (const TensorInfo& tensor : layout.tensors) found[tensor.name] = &tensor;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto tensor = found.find(specs[i].name);
    FUZZ_CHECK(tensor != found.end());
    FUZZ_CHECK(tensor->second->dtype == specs[i].dtype && tensor->second->shape == specs[i].shape);
    FUZZ_CHECK(tensor->second->nbytes == specs[i].nbytes);
    FUZZ_CHECK(specs[i].nbytes == 0 || tensor->second->offset == plan.offsets[i]);
  }
}

EncodeOptions options_of(Input& input) {
  EncodeOptions options;
  options.safetensors_empty_metadata = input.yes();
  options.flashpack = {input.below(300), input.yes(), input.yes()};
  options.torch.alignment = std::uint64_t{1} << input.below(9);
  options.torch.checksums = input.yes();
  return options;
}

void check_file(Input& input, std::string_view format) {
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (std::uint64_t i = input.below(9); i > 0; --i) {
    // Two tensors of one name are refused before anything is laid out.
    const TensorSpec spec = input.spec();
    if (names.insert(spec.name).second) specs.push_back(spec);
  }
  const Metadata metadata = has_metadata(format) ? input.metadata() : Metadata();
  EncodeOptions options = options_of(input);
  FilePlan plan;
  try {
    plan = encode_layout(format, specs, metadata, options);
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kArgument || error.kind() == ErrorKind::kUnsupported);
    return;
  }
  const std::string file = file_of(plan, specs);
  const Layout layout = parse_layout(MemorySource(file, "f"));
  FUZZ_CHECK(layout.format == format && layout.metadata == metadata);
  check_same(layout, specs, plan);
  // The same again, and with checksums where the format has them: nothing moves.
  const std::vector<std::uint32_t> checksums(specs.size(), 0x12345678);
  if (has_own_checksums(format)) options.checksums = checksums;
  const FilePlan again = encode_layout(format, specs, metadata, options);
  FUZZ_CHECK(again.offsets == plan.offsets && again.file_size == plan.file_size);
  FUZZ_CHECK(has_own_checksums(format) || file_of(again, specs) == file);
}

void check_index(Input& input) {
  ShardIndex index;
  for (std::uint64_t i = input.below(4); i > 0; --i) {
    const std::string name = input.plain_name();
    if (std::count(index.files.begin(), index.files.end(), name) == 0) index.files.push_back(name);
  }
  // Each file has a tensor, or else it would not be in the text.
  for (std::uint32_t i = 0; i < index.files.size(); ++i) index.weight_map[input.name() + std::to_string(i)] = i;
  index.metadata = input.metadata();
  const ShardIndex again = parse_shard_index(MemorySource(encode_shard_index(index, 7), "f"));
  FUZZ_CHECK(again.weight_map.size() == index.weight_map.size() && again.files.size() == index.files.size());
  for (const auto& [tensor, file] : index.weight_map) {
    FUZZ_CHECK(again.files.at(again.weight_map.at(tensor)) == index.files[file]);
  }
  index.metadata["total_size"] = "7";
  FUZZ_CHECK(again.metadata == index.metadata);
}

void check_chunks(Input& input) {
  ChunkedCheckpoint checkpoint;
  for (std::uint64_t i = input.below(3); i > 0; --i) checkpoint.files.push_back(input.plain_name() + std::to_string(i));
  std::set<std::string> names;
  for (std::uint64_t i = checkpoint.files.empty() ? 0 : input.below(6); i > 0; --i) {
    const TensorSpec spec = input.spec();
    // torch has no six-bit types, and the conversion to chunks refuses them by name.
    if (dtype_torch_name(spec.dtype).empty() || !names.insert(spec.name).second) continue;
    TensorChunk chunk;
    chunk.file = static_cast<std::uint32_t>(input.below(checkpoint.files.size()));
    chunk.shape = spec.shape;
    chunk.offsets.resize(spec.shape.size());
    checkpoint.tensors.push_back({spec.name, spec.dtype, spec.shape, {chunk}});
  }
  const std::string text = encode_chunks(checkpoint);
  const ChunkedCheckpoint again = parse_chunks(MemorySource(text, "f"));
  FUZZ_CHECK(again.files == checkpoint.files && again.tensors.size() == checkpoint.tensors.size());
  for (const ChunkedTensor& tensor : checkpoint.tensors) {
    const auto found = std::find_if(again.tensors.begin(), again.tensors.end(),
                                    [&](const ChunkedTensor& other) { return other.name == tensor.name; });
    FUZZ_CHECK(found != again.tensors.end());
    FUZZ_CHECK(found->dtype == tensor.dtype && found->shape == tensor.shape && found->chunks.size() == 1);
    FUZZ_CHECK(found->chunks[0].file == tensor.chunks[0].file && found->chunks[0].shape == tensor.shape);
  }
  FUZZ_CHECK(encode_chunks(again) == text);
}

void check_seal(Input& input) {
  Seal seal;
  seal.size = input.below(100'000);
  seal.block_size = std::uint64_t{512} << input.below(8);
  if (input.yes()) seal.sha256 = std::string(64, static_cast<char>('0' + input.below(10)));
  for (std::uint64_t i = count_blocks(seal.size, seal.block_size); i > 0; --i) {
    seal.blocks.push_back(input.ConsumeIntegral<std::uint32_t>());
  }
  std::map<std::string, SealedTensor> tensors;
  for (std::uint64_t i = input.below(5); i > 0; --i) {
    const TensorSpec spec = input.spec();
    if (spec.nbytes > seal.size) continue;
    const std::uint64_t offset = input.below(seal.size - spec.nbytes + 1);
    const auto checksum = input.ConsumeIntegral<std::uint32_t>();
    tensors[spec.name] = {spec.name, spec.dtype, spec.shape, {}, offset, spec.nbytes, checksum};
  }
  for (const auto& [name, tensor] : tensors) seal.tensors.push_back(tensor);
  const std::string text = encode_seal(seal);
  const Seal again = parse_seal(MemorySource(text, "f"));
  FUZZ_CHECK(again.size == seal.size && again.sha256 == seal.sha256 && again.block_size == seal.block_size);
  FUZZ_CHECK(again.blocks == seal.blocks && again.tensors.size() == seal.tensors.size());
  FUZZ_CHECK(encode_seal(again) == text);
}

SetEntry entry_of(Input& input) {
  std::string name = input.name() + "f";
  std::erase(name, '/');
  return {name, input.ConsumeIntegral<std::uint64_t>(), input.ConsumeIntegral<std::int64_t>()};
}

void check_set_change(Input& input) {
  SetChange change;
  change.index = entry_of(input);
  for (std::uint64_t i = input.below(4); i > 0; --i) change.appear.push_back(entry_of(input));
  for (std::uint64_t i = input.below(4); i > 0; --i) change.vanish.push_back(entry_of(input));
  FUZZ_CHECK(parse_change(encode_change(change)) == change);
}

void check(Input& input) {
  switch (input.below(8)) {
    case 0:
      return check_file(input, "safetensors");
    case 1:
      return check_file(input, "flashpack");
    case 2:
      return check_file(input, torch::kZipFormat);
    case 3:
      return check_file(input, torch::kLegacyFormat);
    case 4:
      return check_index(input);
    case 5:
      return check_chunks(input);
    case 6:
      return check_seal(input);
    default:
      return check_set_change(input);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  penstock::Input input(data, size);
  penstock::check(input);
  return 0;
}
