// GPUDirect Storage: bytes between drive and device without the host, by NVIDIA's cuFile.
//
// cuFile is never touched where the system lacks what it takes: versions of it close descriptor 0, or wait for ever,
// when parts are missing. Its compatibility mode, which reads through memory of the host as we do, counts as missing.
#pragma once

#include <filesystem>
#include <string>

namespace penstock {

// Where /proc and /dev are looked for: $PENSTOCK_GDS_ROOT, which tests set, or "/".
std::filesystem::path gds_root();

// Why it can't be used, by what the system says of itself; empty: nothing speaks against asking cuFile. Opens no
// library and no device. `root` is where /proc and /dev are looked for: tests have their own.
std::string gds_obstacle(bool has_device, const std::filesystem::path& root = gds_root());

// The part of this that holds also for those who insist on cuFile, be it in its compatibility mode.
std::string gds_danger(const std::filesystem::path& root = gds_root());

}  // namespace penstock
