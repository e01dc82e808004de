// Repeated measurements of a rate, and what they come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::cli {

class Measurement {
 public:
  void add(std::uint64_t nbytes, double seconds);

  std::size_t count() const noexcept { return rates_.size(); }
  const std::vector<double>& rates() const noexcept { return rates_; }  // GiB/s, in the order they were measured

  // All 0 when nothing was measured.
  double median() const;
  double lowest() const;
  double highest() const;

  // "1.55 - 2.79"; empty for a single measurement.
  std::string range() const;

 private:
  std::vector<double> rates_;
};

}  // namespace penstock::cli
