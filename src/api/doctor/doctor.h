// What the doctor's parts share.
#pragma once

#include "penstock/doctor.h"

namespace penstock {

// True when direct I/O failed for want of a descriptor, and not because the filesystem has none.
bool ran_out_of_files(const FileDiagnosis& file);

}  // namespace penstock
