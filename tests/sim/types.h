// The driver's types and constants as the simulator declares them: on its own, so that a mistake in penstock's
// declarations is not made twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#define SIM_EXPORT __attribute__((visibility("default")))

namespace sim {

using Result = int;                  // CUresult
using Address = unsigned long long;  // CUdeviceptr
using Handle = void*;                // CUcontext, CUstream, CUevent: numbers that are never used twice

inline constexpr int kMostDevices = 16;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;
inline constexpr Result kAlreadyRegistered = 712;
inline constexpr Result kNotRegistered = 713;

// One line of text from its parts.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream line;
  (line << ... << parts);
  return line.str();
}

inline Address as_address(const void* pointer) {
  return reinterpret_cast<Address>(pointer);
}
inline std::byte* as_pointer(Address address) {
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace sim
