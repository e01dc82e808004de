#include "model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "penstock/writer.h"

namespace penstock::cli {
namespace {

constexpr std::uint64_t kLayers = 24;
constexpr std::uint64_t kColumns = 1024;
constexpr std::uint64_t kBytesPerRow = kColumns * 2;  // BF16

struct Part {
  std::string_view name;
  std::uint64_t share;  // of a layer, in 1 / kShares
};

constexpr std::uint64_t kShares = 16;
constexpr std::array<Part, 7> kParts = {{{"self_attn.q_proj.weight", 2},
                                         {"self_attn.k_proj.weight", 1},
                                         {"self_attn.v_proj.weight", 1},
                                         {"self_attn.o_proj.weight", 2},
                                         {"mlp.gate_proj.weight", 3},
                                         {"mlp.up_proj.weight", 3},
                                         {"mlp.down_proj.weight", 4}}};

// SplitMix64: the word at a position is known without those before it, so threads can fill any part.
std::uint64_t noise(std::uint64_t position) {
  std::uint64_t word = position * 0x9E3779B97F4A7C15u;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
  word = (word ^ word >> 27) * 0x94D049BB133111EBu;
  // Bit 14 of a BF16 clear keeps its exponent below 128: no infinity, no NaN.
  return (word ^ word >> 31) & 0xBFFFBFFFBFFFBFFFu;
}

FillFunction noise_from(std::uint64_t seed) {
  return [seed](std::uint64_t offset, std::span<std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const std::uint64_t at = offset + done;
      const std::uint64_t word = noise(seed + at / 8) >> at % 8 * 8;
      const std::size_t length = std::min<std::size_t>(8 - at % 8, bytes.size() - done);
      std::memcpy(bytes.data() + done, &word, length);
      done += length;
    }
  };
}

class ModelWriter {
 public:
  ModelWriter(const std::filesystem::path& path, SaveOptions options) : writer_(path, std::move(options)) {}

  void add(std::string name, std::uint64_t nbytes) {
    const std::uint64_t rows = std::max<std::uint64_t>(1, nbytes / kBytesPerRow);
    writer_.add(std::move(name), DType::kBF16, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(kColumns)},
                noise_from(seed_));
    seed_ += rows * kBytesPerRow / 8;
  }

  Stats commit() { return writer_.commit(); }

 private:
  Writer writer_;
  std::uint64_t seed_ = 1;
};

}  // namespace

Stats make_model(const std::filesystem::path& path, const std::string& format, std::uint64_t nbytes,
                 const ProgressFunction& progress) {
  SaveOptions options;
  options.format = format;
  options.progress = progress;
  ModelWriter model(path, std::move(options));
  const std::uint64_t embedding = nbytes / 16;
  const std::uint64_t layer = (nbytes - embedding) / kLayers;
  model.add("model.embed_tokens.weight", embedding);
  for (std::uint64_t i = 0; i < kLayers; ++i) {
    model.add(fmt::format("model.layers.{}.input_layernorm.weight", i), kBytesPerRow);
    for (const Part& part : kParts)
      model.add(fmt::format("model.layers.{}.{}", i, part.name), layer * part.share / kShares);
  }
  return model.commit();
}

}  // namespace penstock::cli
