#include "allocator.h"

#include <list>
#include <mutex>
#include <set>

namespace sim_torch {
namespace {

constexpr std::size_t kRounding = 512;

struct Block {
  CUdeviceptr address = 0;
  std::size_t nbytes = 0;
  int device = 0;
  Handle stream = nullptr;
  std::set<Handle> other_streams;
};

// Never destroyed: tensors may outlive everything else.
struct Cache {
  std::mutex mutex;
  std::list<Block*> kept;
  std::size_t in_use[kMostDevices] = {};
  std::size_t in_use_peak[kMostDevices] = {};
};

Cache& cache() {
  static auto* const all = new Cache;
  return *all;
}

void destroy(Block* block) {
  const Context context(block->device);
  cuMemFree_v2(block->address);
  delete block;
}

void empty_cache() {
  std::list<Block*> all;
  {
    const std::lock_guard lock(cache().mutex);
    all.swap(cache().kept);
  }
  if (!all.empty()) synchronize_all();
  for (Block* block : all) destroy(block);
}

// Of this stream, large enough and not much larger.
Block* take_kept(std::size_t nbytes, int device, Handle stream) {
  auto& kept = cache().kept;
  auto best = kept.end();
  for (auto it = kept.begin(); it != kept.end(); ++it) {
    const Block& block = **it;
    if (block.device != device || block.stream != stream || block.nbytes < nbytes || block.nbytes > 2 * nbytes)
      continue;
    if (best == kept.end() || block.nbytes < (*best)->nbytes) best = it;
  }
  if (best == kept.end()) return nullptr;
  Block* block = *best;
  kept.erase(best);
  return block;
}

Block* make(std::size_t nbytes, int device, Handle stream) {
  const Context context(device);
  auto block =
      std::make_unique<Block>(Block{.nbytes = nbytes, .device = device, .stream = stream, .other_streams = {}});
  CUresult result = cuMemAlloc_v2(&block->address, nbytes);
  if (result == kOutOfMemory) {
    empty_cache();
    result = cuMemAlloc_v2(&block->address, nbytes);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, result != kOutOfMemory, "sim:", device, " out of memory. Tried to allocate ",
                   nbytes, " bytes");
  check(result, "cuMemAlloc_v2");
  return block.release();
}

void count(const Block& block, bool taken) {
  auto& in_use = cache().in_use[block.device];
  auto& peak = cache().in_use_peak[block.device];
  in_use = taken ? in_use + block.nbytes : in_use - block.nbytes;
  peak = std::max(peak, in_use);
}

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  for (const Handle stream : block->other_streams) {
    const Context current(block->device);
    cuStreamSynchronize(stream);
  }
  block->other_streams.clear();
  const std::lock_guard lock(cache().mutex);
  count(*block, false);
  cache().kept.push_front(block);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    const int device = current_device();
    const c10::Device place(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (nbytes == 0) return {nullptr, place};
    const Handle stream = current_stream(device);
    const std::size_t rounded = (nbytes + kRounding - 1) / kRounding * kRounding;
    std::unique_lock lock(cache().mutex);
    Block* block = take_kept(rounded, device, stream);
    if (block == nullptr) {
      lock.unlock();
      block = make(rounded, device, stream);
      lock.lock();
    }
    count(*block, true);
    return {reinterpret_cast<void*>(block->address), block, give_back, place};
  }

  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    const int device = device_of(to);
    const Context context(device);
    SIM_CHECK(cuMemcpyDtoDAsync_v2(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), nbytes,
                                   current_stream(device)));
  }
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t nbytes) override {
    void* data = nullptr;
    if (nbytes > 0) {
      const Context context(current_device());
      SIM_CHECK(cuMemHostAlloc(&data, nbytes, 1));
    }
    return {data, data, raw_deleter(), c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (data == nullptr) return;
      synchronize_all();  // copies that nobody waited for may use it
      const Context context(current_device());
      cuMemFreeHost(data);
    };
  }

  void copy_data(void* to, const void* from, std::size_t nbytes) const override { default_copy_data(to, from, nbytes); }
};

}  // namespace

c10::Allocator* device_allocator() {
  static DeviceAllocator allocator;
  return &allocator;
}

c10::Allocator* pinned_allocator() {
  static PinnedAllocator allocator;
  return &allocator;
}

void record_use(const c10::DataPtr& data, Handle stream) {
  auto* block = data.cast_context<Block>(give_back);
  if (block != nullptr && block->stream != stream) block->other_streams.insert(stream);
}

}  // namespace sim_torch

// For ctypes.
extern "C" {

__attribute__((visibility("default"))) void sim_torch_empty_cache() {
  sim_torch::empty_cache();
}

__attribute__((visibility("default"))) std::uint64_t sim_torch_allocated(int device, int peak) {
  const std::lock_guard lock(sim_torch::cache().mutex);
  return peak != 0 ? sim_torch::cache().in_use_peak[device] : sim_torch::cache().in_use[device];
}

}  // extern "C"
