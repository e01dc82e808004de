#include "measurement.h"

#include <fmt/format.h>

#include <algorithm>

#include "units.h"

namespace penstock::cli {

void Measurement::add(std::uint64_t nbytes, double seconds) {
  rates_.push_back(gib_per_second(nbytes, seconds));
}

double Measurement::median() const {
  if (rates_.empty()) return 0;
  std::vector<double> sorted = rates_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Measurement::lowest() const {
  return rates_.empty() ? 0 : *std::min_element(rates_.begin(), rates_.end());
}

double Measurement::highest() const {
  return rates_.empty() ? 0 : *std::max_element(rates_.begin(), rates_.end());
}

std::string Measurement::range() const {
  return rates_.size() < 2 ? std::string() : fmt::format("{:.2f} - {:.2f}", lowest(), highest());
}

}  // namespace penstock::cli
