// device_bench: loads to, and saves from, a device, measured for bench/device_race.py. The driver is the simulated one
// of tests/sim, found by PENSTOCK_LIBCUDA; its own processor time, which a real device has not, is told apart.
//
//   load [--first] FILE       a load to device 0; without --first the second of the process, into memory used before
//   hold [--device] FILE TARGET
//                             save_async of tensors on the device, until its caller may change them; the second of the
//                             process; with --device the snapshot is taken there
//   copy FILE                 the least that this takes: the same bytes to pinned memory, and nothing else
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device.h"
#include "process.h"
#include "sim.h"

namespace {

using namespace penstock;

constexpr std::size_t kBlock = std::size_t{2} << 20;
constexpr std::size_t kBlocks = 24;

template <typename Function>
Function* simulator(const char* name) {
  // Loaded by penstock when it opened the device; by its path, so that RTLD_DEFAULT does not see it.
  static void* const library = dlopen(std::getenv("PENSTOCK_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) throw std::runtime_error("PENSTOCK_LIBCUDA does not name the simulated driver");
  return reinterpret_cast<Function*>(found);
}

double copy_cpu_seconds() {
  return 1e-9 * static_cast<double>(simulator<decltype(sim_copy_cpu_ns)>("sim_copy_cpu_ns")());
}

// A Probe that knows what of the processor time was the device's.
class DeviceProbe {
 public:
  DeviceProbe() : copies_(copy_cpu_seconds()) { simulator<decltype(sim_clear_counters)>("sim_clear_counters")(); }

  bench::Result finish() const {
    bench::Result result = probe_.finish();
    const double copies = copy_cpu_seconds() - copies_;
    sim_counters counters{};
    simulator<decltype(sim_read_counters)>("sim_read_counters")(&counters);
    result["cpu_seconds"] -= copies;
    result["copy_cpu_seconds"] = copies;
    result["pageable_copies"] = static_cast<double>(counters.pageable_copies);
    result["pinned_bytes_peak"] = static_cast<double>(counters.pinned_bytes_peak);
    result["violations"] = static_cast<double>(counters.violations);
    return result;
  }

 private:
  double copies_;
  bench::Probe probe_;
};

LoadResult load_to_device(const char* file) {
  LoadOptions options;
  options.allocate = device_allocator(0);
  return Reader(file).load(options);
}

// Tensors of the device as the host sees them, for checking: one after the other.
std::vector<Tensor> fetch(const std::vector<Tensor>& tensors, std::vector<std::vector<std::byte>>& memory) {
  std::vector<Tensor> fetched = tensors;
  for (Tensor& tensor : fetched) {
    std::vector<std::byte>& bytes = memory.emplace_back(tensor.bytes.size());
    copy_to_host(bytes.data(), tensor.bytes.data(), bytes.size());
    tensor.bytes = bytes;
  }
  return fetched;
}

bench::Result load(const char* file, bool first) {
  if (!first) load_to_device(file);
  device_allocator(0);  // makes the context, which is not what is measured
  bench::wait_for_start();
  const DeviceProbe probe;
  const LoadResult loaded = load_to_device(file);
  bench::Result result = probe.finish();
  std::vector<std::vector<std::byte>> memory;
  const std::vector<Tensor> fetched = fetch(loaded.tensors, memory);
  result["page_sample"] = static_cast<double>(bench::touch_every_page(fetched));
  result["checksum"] = bench::checksum(fetched);
  return result;
}

SaveJob start_save(const std::vector<Tensor>& tensors, const char* target, bool on_device) {
  Writer writer{target};
  for (const Tensor& tensor : tensors) writer.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes.data());
  SaveAsyncOptions options;
  options.on_device = on_device;
  return save_async(std::move(writer), options);
}

bench::Result hold(const char* file, const char* target, bool on_device) {
  const LoadResult loaded = load_to_device(file);
  start_save(loaded.tensors, target, on_device).wait();
  bench::wait_for_start();
  const DeviceProbe probe;
  SaveJob job = start_save(loaded.tensors, target, on_device);
  job.staged();
  bench::Result result = probe.finish();
  job.wait();
  return result;
}

// Block by block, into the same few again and again; waits.
void copy_all(const std::vector<Tensor>& tensors, std::byte* pinned, Lane& lane) {
  std::size_t block = 0;
  for (const Tensor& tensor : tensors) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.bytes.data());
    for (std::size_t begin = 0; begin < tensor.bytes.size(); begin += kBlock) {
      const std::size_t nbytes = std::min(kBlock, tensor.bytes.size() - begin);
      lane.to_host(pinned + block++ % kBlocks * kBlock, address + begin, nbytes);
    }
  }
  lane.wait(lane.mark());
  lane.check();
}

bench::Result copy(const char* file) {
  const LoadResult loaded = load_to_device(file);
  const std::shared_ptr<Device> device = open_device(0);
  std::string reason;
  std::byte* const pinned = device->allocate_pinned(kBlocks * kBlock, reason);
  if (pinned == nullptr) throw std::runtime_error(reason);
  const std::unique_ptr<Lane> lane = device->make_lane();
  copy_all(loaded.tensors, pinned, *lane);  // has the pinned pages there
  bench::wait_for_start();
  const DeviceProbe probe;
  copy_all(loaded.tensors, pinned, *lane);
  return probe.finish();
}

bench::Result run(const std::vector<std::string_view>& arguments, char** argv) {
  const std::size_t count = arguments.size();
  const bool flag = count > 1 && arguments[1].starts_with("--");
  const std::size_t first = flag ? 2 : 1;  // of the paths
  if (count == first + 1 && arguments[0] == "load") return load(argv[1 + first], flag);
  if (count == first + 2 && arguments[0] == "hold") return hold(argv[1 + first], argv[2 + first], flag);
  if (count == 2 && arguments[0] == "copy") return copy(argv[2]);
  throw std::runtime_error("usage: device_bench load [--first] FILE | hold [--device] FILE TARGET | copy FILE");
}

}  // namespace

int main(int argc, char** argv) try {
  bench::print_result(run({argv + 1, argv + argc}, argv));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "device_bench: %s\n", error.what());
  return 1;
}
