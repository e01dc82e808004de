// cufile_program LIBCUDA LIBCUFILE INPUT OUTPUT direct|buffered FOLDER
//
// Reads a file to device memory and writes device memory to a file with the functions of a libcufile, called by the
// declarations of src/device. Prints what each gave, one line each; what lay on the device after a read is in a file of
// FOLDER. Compiled by test_real_cufile.py.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "device/cuda_api.h"
#include "device/cufile_api.h"

namespace {

using penstock::cuda::Address;
using penstock::cuda::FileError;

penstock::cuda::Api cuda;
penstock::cuda::FileApi cufile;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  return library != nullptr ? library : (fail(dlerror()), nullptr);
}

template <typename Function>
void find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) fail(std::string("there is no ") + symbol);
}

void find_functions(const char* libcuda, const char* libcufile) {
  void* library = open_library(libcuda);
#define PENSTOCK_FIND(member, symbol, parameters) find(library, #symbol, cuda.member);
  PENSTOCK_CUDA_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  library = open_library(libcufile);
#define PENSTOCK_FIND(result, member, symbol, parameters) find(library, #symbol, cufile.member);
  PENSTOCK_CUFILE_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
}

void show(const char* what, long result) {
  std::printf("%s %ld\n", what, result);
  std::fflush(stdout);
}

void require(const char* what, FileError error) {
  show(what, error.file_error);
  if (error.file_error != 0) fail(std::string(what) + " failed");
}

void require(const char* what, penstock::cuda::Result result) {
  if (result != 0) fail(std::string(what) + " gave " + std::to_string(result));
}

void use_device() {
  penstock::cuda::Ordinal device = 0;
  penstock::cuda::Context context = nullptr;
  require("cuInit", cuda.init(0));
  require("cuDeviceGet", cuda.device_get(&device, 0));
  require("cuDevicePrimaryCtxRetain", cuda.primary_retain(&context, device));
  require("cuCtxPushCurrent_v2", cuda.push_context(context));
}

// Device memory, registered with cuFile, and pinned memory of the same size to look at it.
class Buffer {
 public:
  explicit Buffer(std::size_t nbytes) : nbytes_(nbytes) {
    require("cuMemAlloc_v2", cuda.allocate(&address_, nbytes));
    require("cuMemHostAlloc", cuda.host_allocate(&host_, nbytes, 0));
    require("cuStreamCreate", cuda.stream_create(&stream_, penstock::cuda::kStreamNonBlocking));
    require("cuFileBufRegister", cufile.buffer_register(data(), nbytes, 0));
  }
  ~Buffer() {
    require("cuFileBufDeregister", cufile.buffer_deregister(data()));
    require("cuStreamDestroy_v2", cuda.stream_destroy(stream_));
    require("cuMemFreeHost", cuda.host_free(host_));
    require("cuMemFree_v2", cuda.free(address_));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_); }

  void clear() {
    std::memset(host_, 0, nbytes_);
    require("cuMemcpyHtoDAsync_v2", cuda.copy_to_device(address_, host_, nbytes_, stream_));
    require("cuStreamSynchronize", cuda.stream_synchronize(stream_));
  }

  void dump(const std::string& path) {
    require("cuMemcpyDtoHAsync_v2", cuda.copy_to_host(host_, address_, nbytes_, stream_));
    require("cuStreamSynchronize", cuda.stream_synchronize(stream_));
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    if (file == nullptr || std::fwrite(host_, 1, nbytes_, file) != nbytes_ || std::fclose(file) != 0) fail(path);
  }

 private:
  const std::size_t nbytes_;
  Address address_ = 0;
  void* host_ = nullptr;
  penstock::cuda::Stream stream_ = nullptr;
};

class File {
 public:
  File(const char* path, int flags) : fd_(open(path, flags)) {
    if (fd_ < 0) fail(path);
    penstock::cuda::FileDescription description{};
    description.fd = fd_;
    require("cuFileHandleRegister", cufile.handle_register(&handle_, &description));
  }
  ~File() {
    cufile.handle_deregister(handle_);
    close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::size_t nbytes() const {
    struct stat status {};
    return fstat(fd_, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
  }
  penstock::cuda::FileHandle handle() const { return handle_; }

 private:
  const int fd_;
  penstock::cuda::FileHandle handle_ = nullptr;
};

void move_bytes(const char* input, const char* output, int flags, const std::string& folder) {
  const File from(input, O_RDONLY | flags);
  const File to(output, O_RDWR | flags);
  const std::size_t nbytes = from.nbytes();
  Buffer buffer(nbytes);
  // Of the file, to the device: bytes, file offset, offset on the device.
  const auto read = [&](const char* what, std::size_t wanted, off_t file_offset, off_t device_offset) {
    buffer.clear();
    show(what, cufile.read(from.handle(), buffer.data(), wanted, file_offset, device_offset));
    buffer.dump(folder + "/" + what);
  };
  read("inside_a_page", 1000, 4097, 513);
  read("past_the_end", 8192, static_cast<off_t>(nbytes) - 4096, 0);
  read("behind_the_end", 4096, static_cast<off_t>(nbytes), 0);
  read("all", nbytes, 0, 0);
  show("write", cufile.write(to.handle(), buffer.data(), nbytes / 2, 0, 0));
  show("write_inside_a_page", cufile.write(to.handle(), buffer.data(), 1000, static_cast<off_t>(nbytes) / 2 + 77, 513));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) fail("usage: cufile_program LIBCUDA LIBCUFILE INPUT OUTPUT direct|buffered FOLDER");
  find_functions(arguments[1], arguments[2]);
  int version = 0;
  require("cuFileGetVersion", cufile.version(&version));
  show("version", version);
  use_device();
  require("cuFileDriverOpen", cufile.driver_open());
  const bool direct = std::string(arguments[5]) == "direct";
  move_bytes(arguments[3], arguments[4], direct ? O_DIRECT : 0, arguments[6]);
  require("cuFileDriverClose_v2", cufile.driver_close());
}
