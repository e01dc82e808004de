// A CUDA device: a context of it, streams and events. See device.h for what each function does.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

#include "device/cuda_api.h"
#include "device/device.h"

namespace penstock::cuda {

class CudaDevice final : public Device, public std::enable_shared_from_this<CudaDevice> {
 public:
  // `context` is the primary one, or that of memory which somebody allocated in another.
  CudaDevice(const Api& api, Ordinal ordinal, Context context, DeviceInfo info);

  const DeviceInfo& info() const noexcept override { return info_; }
  std::unique_ptr<Lane> make_lane() override;
  std::shared_ptr<const Moment> moment(void* stream) override;
  Free memory() override;
  std::shared_ptr<void> allocate(std::uint64_t nbytes) override;
  bool pin(std::byte* data, std::size_t nbytes, std::string& reason) noexcept override;
  void unpin(std::byte* data) noexcept override;
  std::byte* allocate_pinned(std::size_t nbytes, std::string& reason) noexcept override;
  void free_pinned(std::byte* data) noexcept override;
  bool start_files(std::string& reason) override;
  std::unique_ptr<DeviceFile> open_file(int fd, const std::string& path) override;
  std::shared_ptr<void> register_for_files(std::uint64_t address, std::uint64_t nbytes, std::string& reason) override;

  const Api& api() const noexcept { return api_; }
  Ordinal ordinal() const noexcept { return ordinal_; }
  Context context() const noexcept { return context_; }

  // Throws for anything but success: "cuda:0 (NVIDIA H100): cuStreamCreate failed: CUDA_ERROR_...".
  void require(Result result, const char* call) const;
  std::string describe_failure(Result result, const char* call) const;

 private:
  const Api& api_;
  const Ordinal ordinal_;
  const Context context_;
  const DeviceInfo info_;
};

// Makes a device's context the thread's for as long as it lives, whatever the caller had.
class ContextScope {
 public:
  explicit ContextScope(const CudaDevice& device)
      : device_(device), result_(device.api().push_context(device.context())) {}
  ~ContextScope() {
    Context popped = nullptr;
    if (result_ == kSuccess) device_.api().pop_context(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  void require() const { device_.require(result_, "cuCtxPushCurrent"); }
  // The same, where a reason will do.
  bool is_entered(std::string& reason) const {
    if (result_ != kSuccess) reason = device_.describe_failure(result_, "cuCtxPushCurrent");
    return result_ == kSuccess;
  }

 private:
  const CudaDevice& device_;
  const Result result_;
};

// What the driver says of a device; no context is made.
DeviceInfo describe_device(const Api& api, Ordinal ordinal);

// The driver, ready for use. Throws Error(kDevice).
const Api& require_driver();

}  // namespace penstock::cuda
