// A diagnosis as JSON: the fields of penstock/doctor.h under their own names.
#pragma once

#include <string>

#include "penstock/doctor.h"

namespace penstock::cli {

// One line.
std::string diagnosis_json(const Diagnosis& diagnosis, const std::string& path);

}  // namespace penstock::cli
