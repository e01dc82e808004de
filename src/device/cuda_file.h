// Files that a CUDA device reads and writes by itself, by cuFile. See device.h for what each function does, and gds.h
// for the rule that comes first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/cuda_device.h"
#include "device/cufile_api.h"

namespace penstock::cuda {

// cuFile, ready for use; null, with the reason, where that failed. Once it is ready it stays so. Safe from several
// threads, with a context current.
const FileApi* open_file_driver(const Api& api, std::string& why_not);

// "error 5016 (more memory than can be mapped)".
std::string describe(const Api& api, const FileError& error);

// These are for when open_file_driver() has given cuFile.
std::unique_ptr<DeviceFile> open_device_file(std::shared_ptr<const CudaDevice> device, int fd, const std::string& path);
std::shared_ptr<void> register_for_files(std::shared_ptr<const CudaDevice> device, std::uint64_t address,
                                         std::uint64_t nbytes, std::string& reason);

}  // namespace penstock::cuda
