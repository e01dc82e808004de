#include "transfer/fetch.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace penstock {

void Fetch::add(const Origin& origin, std::uint64_t offset, std::span<std::byte> to) {
  parts_.push_back({origin.device.get(), origin.device_offset + offset, to});
}

Lane& Fetch::lane_of(const DeviceSource& source) {
  Lane& lane = source.lanes().mine();
  const auto same = [&](const Flight& flight) { return flight.lane == &lane; };
  if (std::none_of(flights_.begin(), flights_.end(), same)) flights_.push_back({&lane, 0});
  return lane;
}

bool Fetch::start(std::span<std::byte> scratch) {
  flights_.clear();
  arrivals_.clear();
  const std::size_t least = scratch.size() / 8;
  try {
    for (; next_ < parts_.size(); ++next_) {
      Part& part = parts_[next_];
      if (part.source->is_plain()) {
        lane_of(*part.source).to_host(part.to.data(), part.source->address() + part.offset, part.to.size());
        continue;
      }
      // What is left at the end of the scratch block is not worth a round.
      while (!part.to.empty() && (scratch.size() >= least || arrivals_.empty())) start_round(part, scratch);
      if (!part.to.empty()) break;
    }
    for (Flight& flight : flights_) flight.ticket = flight.lane->mark();
  } catch (...) {
    for (const Flight& flight : flights_) flight.lane->drain();
    throw;
  }
  return !flights_.empty();
}

void Fetch::start_round(Part& part, std::span<std::byte>& scratch) {
  const DeviceSource& source = *part.source;
  DeviceSource::Round round = source.plan(part.offset, part.to.size(), scratch.size());
  if (round.nbytes == 0) throw std::logic_error("a block without room for one element");
  std::byte* const block = scratch.data();
  source.fetch(round, lane_of(source), block);
  const auto nbytes = static_cast<std::size_t>(round.nbytes);
  scratch = scratch.subspan(static_cast<std::size_t>(round.box.nbytes()));
  arrivals_.push_back({&source, std::move(round), block, part.to.first(nbytes)});
  part.offset += nbytes;
  part.to = part.to.subspan(nbytes);
}

bool Fetch::is_done() noexcept {
  return std::all_of(flights_.begin(), flights_.end(),
                     [](const Flight& flight) { return flight.lane->passed(flight.ticket); });
}

void Fetch::wait() noexcept {
  for (const Flight& flight : flights_) flight.lane->wait(flight.ticket);
}

void Fetch::land() {
  for (const Flight& flight : flights_) flight.lane->check();
  for (const Arrival& arrival : arrivals_) arrival.source->finish(arrival.round, arrival.block, arrival.to);
}

}  // namespace penstock
