#include "device/cuda_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/unique_fd.h"

namespace penstock::cuda {
namespace {

struct KnownError {
  int number;
  const char* meaning;
};

constexpr auto kKnownErrors = std::to_array<KnownError>({
    {5001, "nvidia-fs is not loaded"},
    {5004, "nvidia-fs is of another version"},
    {5005, "nvidia-fs does not tell its version"},
    {5007, "not on this platform"},
    {5008, "not for this file"},
    {5009, "not for this device"},
    {5010, "nvidia-fs failed"},
    {5012, "not an address of a device"},
    {5013, "memory of another kind"},
    {5014, "past the end of an allocation"},
    {5015, "memory of another context"},
    {5016, "more memory than can be mapped"},
    {5017, "memory that is not mapped"},
    {5018, "not for files of this kind"},
    {5019, "the descriptor was opened another way"},
    {5020, "the descriptor is not for direct I/O"},
    {5022, "an invalid value"},
    {5023, "the memory is registered already"},
    {5024, "the memory is not registered"},
    {5025, "permission denied"},
    {5027, "the file is not registered"},
    {5028, "the file is registered already"},
    {5030, "cuFile failed within"},
    {5031, "the file has no name to open it by"},
    {5033, "nvidia-fs could not be set up"},
    {5034, "turned off for this file by cufile.json"},
    {5036, "memory of the device can't be pinned"},
});

// Versions of cuFileDriverOpen close descriptor 0 where nvidia-fs lacks its device nodes. Whoever opens a file next
// would get that number.
class KeptStandardInput {
 public:
  KeptStandardInput() : flags_(::fcntl(0, F_GETFD)), copy_(flags_ < 0 ? -1 : ::fcntl(0, F_DUPFD_CLOEXEC, 3)) {}
  ~KeptStandardInput() {
    if (!copy_ || ::fcntl(0, F_GETFD) >= 0) return;
    if (::dup2(copy_.get(), 0) == 0) ::fcntl(0, F_SETFD, flags_);
  }
  KeptStandardInput(const KeptStandardInput&) = delete;
  KeptStandardInput& operator=(const KeptStandardInput&) = delete;

 private:
  const int flags_;
  const UniqueFd copy_;
};

// A descriptor of one's own, opened anew: cuFile takes each only once, it has to outlive the handle, and flags that are
// no obstacle to us (O_NOFOLLOW, O_APPEND) are one to cuFile.
UniqueFd own_descriptor(int fd, const std::string& path) {
  const int flags = ::fcntl(fd, F_GETFL) & (O_ACCMODE | O_DIRECT);
  UniqueFd own(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), flags | O_CLOEXEC));
  if (!own) throw_errno(path, "cannot open it again for cuFile", errno);
  return own;
}

class CudaFile final : public DeviceFile {
 public:
  CudaFile(std::shared_ptr<const CudaDevice> device, int fd, std::string path)
      : device_(std::move(device)),
        api_(*open_file_library().api),
        path_(std::move(path)),
        fd_(own_descriptor(fd, path_)) {
    const ContextScope scope(*device_);
    scope.require();
    FileDescription description;
    description.fd = fd_.get();
    const FileError error = api_.handle_register(&handle_, &description);
    if (error.file_error != kFileSuccess) {
      throw Error(ErrorKind::kDevice, fmt::format("{}: {}: cuFileHandleRegister failed: {}", path_, device_->name(),
                                                  describe(device_->api(), error)));
    }
  }
  ~CudaFile() override {
    const ContextScope scope(*device_);
    api_.handle_deregister(handle_);
  }

  unsigned read(std::uint64_t offset, const DeviceSpot& to, std::uint64_t nbytes) override {
    return move("cuFileRead", offset, nbytes, [&](std::uint64_t done) {
      return api_.read(handle_, reinterpret_cast<void*>(to.base), nbytes - done, static_cast<off_t>(offset + done),
                       static_cast<off_t>(to.distance + done));
    });
  }
  unsigned write(std::uint64_t offset, const DeviceSpot& from, std::uint64_t nbytes) override {
    return move("cuFileWrite", offset, nbytes, [&](std::uint64_t done) {
      return api_.write(handle_, reinterpret_cast<const void*>(from.base), nbytes - done,
                        static_cast<off_t>(offset + done), static_cast<off_t>(from.distance + done));
    });
  }

 private:
  template <typename Call>
  unsigned move(const char* name, std::uint64_t offset, std::uint64_t nbytes, const Call& call) const {
    const ContextScope scope(*device_);
    scope.require();
    unsigned calls = 0;
    for (std::uint64_t done = 0; done < nbytes;) {
      errno = 0;
      const ssize_t moved = call(done);
      ++calls;
      if (moved == -1 && errno == EINTR) continue;
      if (moved < 0) fail(name, offset + done, moved, errno);
      if (moved == 0) {
        throw Error(ErrorKind::kChanged, fmt::format("{}: {}: {} at offset {} moved nothing of {} bytes", path_,
                                                     device_->name(), name, offset + done, nbytes - done));
      }
      done += static_cast<std::uint64_t>(moved);
    }
    return calls;
  }

  // -1: the system's error; below: cuFile's.
  [[noreturn]] void fail(const char* name, std::uint64_t offset, ssize_t result, int error_number) const {
    const std::string what =
        result == -1 ? errno_text(error_number) : describe(device_->api(), {static_cast<int>(-result), 0});
    const ErrorKind kind = result == -1 ? errno_kind(error_number) : ErrorKind::kDevice;
    throw Error(kind, fmt::format("{}: {}: {} at offset {} failed: {}", path_, device_->name(), name, offset, what),
                result == -1 ? error_number : 0);
  }

  const std::shared_ptr<const CudaDevice> device_;
  const FileApi& api_;
  const std::string path_;
  const UniqueFd fd_;
  FileHandle handle_ = nullptr;
};

struct FileDriver {
  std::mutex mutex;
  bool is_open = false;
};

auto& file_driver = *new PerProcess<FileDriver>();

}  // namespace

std::string describe(const Api& api, const FileError& error) {
  if (error.file_error == kFileDriverFailed && error.driver_error != kSuccess) {
    return fmt::format("error {} ({})", error.file_error, describe(api, error.driver_error));
  }
  for (const KnownError& known : kKnownErrors) {
    if (known.number == error.file_error) return fmt::format("error {} ({})", known.number, known.meaning);
  }
  return fmt::format("error {}", error.file_error);
}

const FileApi* open_file_driver(const Api& api, std::string& why_not) {
  const FileLibrary& library = open_file_library();
  if (library.api == nullptr) {
    why_not = library.why_not;
    return nullptr;
  }
  FileDriver& driver = file_driver.get();
  const std::lock_guard lock(driver.mutex);
  if (driver.is_open) return library.api;
  const KeptStandardInput kept;
  const FileError error = library.api->driver_open();
  driver.is_open = error.file_error == kFileSuccess || error.file_error == kFileAlreadyOpen;
  if (driver.is_open) return library.api;
  why_not = fmt::format("cuFileDriverOpen failed: {}", describe(api, error));
  return nullptr;
}

std::unique_ptr<DeviceFile> open_device_file(std::shared_ptr<const CudaDevice> device, int fd,
                                             const std::string& path) {
  return std::make_unique<CudaFile>(std::move(device), fd, path);
}

std::shared_ptr<void> register_for_files(std::shared_ptr<const CudaDevice> device, std::uint64_t address,
                                         std::uint64_t nbytes, std::string& reason) {
  const FileApi& api = *open_file_library().api;
  void* const memory = reinterpret_cast<void*>(address);
  const ContextScope scope(*device);
  if (!scope.is_entered(reason)) return nullptr;
  const FileError error = api.buffer_register(memory, nbytes, 0);
  if (error.file_error != kFileSuccess) {
    reason = fmt::format("{}: cuFileBufRegister failed: {}", device->name(), describe(device->api(), error));
    return nullptr;
  }
  return {memory, [device = std::move(device), &api](void* registered) {
            const ContextScope inner(*device);
            api.buffer_deregister(registered);
          }};
}

}  // namespace penstock::cuda
