// The simulated libcufile.so.0.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "device/cufile_api.h"
#include "testing/files.h"
#include "testing/simulated_context.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = (1 << 20) + 777;

cuda::FileApi simulated_files() {
  cuda::FileApi api;
#define PENSTOCK_FIND(result, member, symbol_name, parameters) \
  api.member = SimulatedDevices::symbol<std::remove_pointer_t<decltype(api.member)>>(#symbol_name);
  PENSTOCK_CUFILE_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  return api;
}

class SimulatorFile : public ::testing::Test {
 protected:
  SimulatorFile() {
    write_file(folder / "file", bytes);
    fd = open((folder / "file").c_str(), O_RDWR | O_DIRECT);
    if (fd < 0) {  // a filesystem without O_DIRECT
      sim.set("file_buffered", 1);
      fd = open((folder / "file").c_str(), O_RDWR);
    }
    EXPECT_EQ(files.driver_open().file_error, 0);
    cuda::FileDescription description;
    description.fd = fd;
    EXPECT_EQ(files.handle_register(&handle, &description).file_error, 0);
  }

  void TearDown() override {
    if (handle != nullptr) {
      files.handle_deregister(handle);
    }
    EXPECT_EQ(files.driver_close().file_error, 0);
    close(fd);
    EXPECT_EQ(context.api.free(device), 0);
  }

  void* at(std::size_t offset = 0) const { return reinterpret_cast<void*>(device + offset); }

  const std::vector<std::byte> bytes = random_bytes(kBytes);
  TempDir folder;
  SimulatedDevices sim;
  SimulatedContext context;
  cuda::Address device = context.allocate(kBytes);
  cuda::FileApi files = simulated_files();
  cuda::FileHandle handle = nullptr;
  int fd = -1;
};

TEST_F(SimulatorFile, whole_file_is_read_and_what_lies_behind_its_end_is_not) {
  EXPECT_EQ(files.read(handle, at(), kBytes, 0, 0), static_cast<ssize_t>(kBytes));
  EXPECT_EQ(sim.peek(device, kBytes), bytes);
  EXPECT_EQ(files.read(handle, at(), kBytes, 4096, 0), static_cast<ssize_t>(kBytes - 4096));
  EXPECT_EQ(files.read(handle, at(), 4096, kBytes + 4096, 0), 0);
  EXPECT_EQ(sim.counters().file_reads, 3u);
  EXPECT_EQ(sim.counters().file_bytes_read, 2 * kBytes - 4096);
}

TEST_F(SimulatorFile, misaligned_part_lands_at_its_offset_in_the_buffer) {
  EXPECT_EQ(files.read(handle, at(), 5000, 777, 300), 5000);
  EXPECT_EQ(sim.peek(device + 300, 5000), std::vector(bytes.begin() + 777, bytes.begin() + 5777));
}

TEST_F(SimulatorFile, device_memory_is_written) {
  const std::vector<std::byte> other = random_bytes(kBytes, 2);
  sim.poke(device, other.data(), kBytes);
  EXPECT_EQ(files.write(handle, at(), kBytes, 0, 0), static_cast<ssize_t>(kBytes));
  EXPECT_EQ(read_file(folder / "file"), other);
  EXPECT_EQ(sim.counters().file_bytes_written, kBytes);
}

TEST_F(SimulatorFile, reads_can_be_short_and_can_fail) {
  sim.set("file_most_bytes", 8192);
  EXPECT_EQ(files.read(handle, at(), kBytes, 0, 0), 8192);
  sim.fail("cuFileRead:1:5,cuFileRead:2:5011");
  EXPECT_EQ(files.read(handle, at(), kBytes, 0, 0), -1);
  EXPECT_EQ(errno, 5);
  EXPECT_EQ(files.read(handle, at(), kBytes, 0, 0), -5011);
  EXPECT_EQ(files.read(handle, at(), kBytes, 0, 0), 8192);
}

TEST_F(SimulatorFile, reads_past_the_allocation_and_into_other_memory_are_found) {
  std::vector<std::byte> host(4096);
  EXPECT_LT(files.read(handle, at(), kBytes, 0, 1), 0);
  EXPECT_LT(files.read(handle, host.data(), 4096, 0, 0), 0);
  EXPECT_THAT(sim.take_violations(), ElementsAre("cuFileRead: the buffer runs past the end of device memory",
                                                 HasSubstr("is no memory of the driver's, not device memory")));
}

TEST_F(SimulatorFile, reads_in_another_context_are_found) {
  {
    const SimulatedContext second(1);
    EXPECT_LT(files.read(handle, at(), 4096, 0, 0), 0);
  }
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuFileRead: the buffer is memory of device 0, the context is of device 1"));
}

TEST_F(SimulatorFile, handles_that_are_not_registered_are_found) {
  files.handle_deregister(handle);
  EXPECT_EQ(files.read(handle, at(), 4096, 0, 0), -5027);
  files.handle_deregister(handle);
  handle = nullptr;
  EXPECT_THAT(sim.take_violations(),
              ElementsAre(HasSubstr("cuFileRead: file handle "), HasSubstr("cuFileHandleDeregister: file handle ")));
}

TEST_F(SimulatorFile, descriptors_without_direct_io_are_refused_unless_allowed) {
  const int buffered = open((folder / "file").c_str(), O_RDONLY);
  cuda::FileDescription description;
  description.fd = buffered;
  cuda::FileHandle second = nullptr;
  sim.set("file_buffered", 0);
  EXPECT_EQ(files.handle_register(&second, &description).file_error, 5020);
  sim.set("file_buffered", 1);
  EXPECT_EQ(files.handle_register(&second, &description).file_error, 0);
  EXPECT_EQ(files.handle_register(&second, &description).file_error, 5028);
  EXPECT_THAT(sim.leaks(SIM_FILES), ElementsAre("2 cuFile handles are not deregistered"));
  files.handle_deregister(second);
  close(buffered);
}

TEST_F(SimulatorFile, buffers_are_registered_once_and_for_device_memory) {
  EXPECT_EQ(files.buffer_register(at(), kBytes, 0).file_error, 0);
  EXPECT_EQ(files.buffer_register(at(), kBytes, 0).file_error, 5023);
  EXPECT_THAT(sim.leaks(SIM_FILES), ::testing::Contains("1 cuFile buffers are not deregistered"));
  EXPECT_EQ(files.buffer_deregister(at()).file_error, 0);
  EXPECT_THAT(sim.take_violations(), IsEmpty());
  EXPECT_EQ(files.buffer_deregister(at()).file_error, 5024);
  EXPECT_THAT(sim.take_violations(), ElementsAre(HasSubstr("is not registered")));
  sim.fail("cuFileBufRegister:1:5016");
  EXPECT_EQ(files.buffer_register(at(), kBytes, 0).file_error, 5016);
}

TEST_F(SimulatorFile, registered_buffer_is_let_go_of_before_its_memory) {
  const cuda::Address memory = context.allocate(4096);
  EXPECT_EQ(files.buffer_register(reinterpret_cast<void*>(memory), 4096, 0).file_error, 0);
  EXPECT_EQ(context.api.free(memory), 0);
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuMemFree_v2: device memory is freed while it is registered with cuFile"));
  EXPECT_EQ(files.buffer_deregister(reinterpret_cast<void*>(memory)).file_error, 0);
}

TEST_F(SimulatorFile, registered_buffer_is_named_by_its_start) {
  EXPECT_EQ(files.buffer_register(at(), kBytes, 0).file_error, 0);
  EXPECT_EQ(files.read(handle, at(), 4096, 0, 8192), 4096);
  EXPECT_THAT(sim.take_violations(), IsEmpty());
  EXPECT_EQ(files.read(handle, at(8192), 4096, 0, 0), 4096);
  EXPECT_THAT(sim.take_violations(), ElementsAre(HasSubstr("not named by the address that it was registered with")));
  EXPECT_EQ(files.buffer_deregister(at()).file_error, 0);
}

TEST_F(SimulatorFile, link_counts_for_files_too) {
  sim.set("link", 1'000'000'000);
  EXPECT_EQ(files.read(handle, at(), 8192, 0, 0), 8192);
  EXPECT_EQ(files.write(handle, at(), 4096, 0, 0), 4096);
  EXPECT_EQ(sim.counters().link_ns_to_device, 8192u);
  EXPECT_EQ(sim.counters().link_ns_to_host, 4096u);
}

}  // namespace
}  // namespace penstock::testing
