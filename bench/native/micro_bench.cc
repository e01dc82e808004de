// What penstock costs on the processor alone: parsing and laying out headers of many tensors, casting elements.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/cast.h"
#include "format/safetensors.h"

namespace penstock {
namespace {

constexpr std::uint64_t kElementsPerTensor = 16;

// A file that is all in memory; its data section is only claimed.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(FilePlan plan) : plan_(std::move(plan)) {}
  std::uint64_t size() const override { return plan_.file_size; }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    std::copy_n(plan_.prefix.begin() + static_cast<std::ptrdiff_t>(offset), bytes.size(), bytes.begin());
  }

 private:
  FilePlan plan_;
  std::string path_ = "memory";
};

std::vector<TensorSpec> small_tensors(std::int64_t count) {
  std::vector<TensorSpec> specs;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name =
        "model.layers." + std::to_string(i / 100) + ".experts." + std::to_string(i % 100) + ".scale";
    specs.push_back({name, DType::kF32, {kElementsPerTensor}, 4 * kElementsPerTensor});
  }
  return specs;
}

void parse_header(benchmark::State& state) {
  const MemorySource source(safetensors::encode(small_tensors(state.range(0)), {}));
  for (auto _ : state) benchmark::DoNotOptimize(safetensors::parse(source));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(parse_header)->Arg(200)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

void encode_header(benchmark::State& state) {
  const auto specs = small_tensors(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(safetensors::encode(specs, {}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(encode_header)->Arg(200)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

void cast(benchmark::State& state, DType from, DType to) {
  constexpr std::uint64_t kCount = 64 * 1024;
  const std::vector<std::byte> source(kCount * dtype_bits(from) / 8, std::byte{0x3c});
  std::vector<std::byte> target(kCount * dtype_bits(to) / 8);
  for (auto _ : state) {
    cast_elements(from, source.data(), to, target.data(), kCount);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(source.size()));
}
BENCHMARK_CAPTURE(cast, f32_to_bf16, DType::kF32, DType::kBF16);
BENCHMARK_CAPTURE(cast, bf16_to_f32, DType::kBF16, DType::kF32);
BENCHMARK_CAPTURE(cast, f16_to_f32, DType::kF16, DType::kF32);
BENCHMARK_CAPTURE(cast, f32_to_f16, DType::kF32, DType::kF16);
BENCHMARK_CAPTURE(cast, f32_to_f8_e4m3, DType::kF32, DType::kF8E4M3);

}  // namespace
}  // namespace penstock
