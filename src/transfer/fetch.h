// Fetch: brings the parts of one block that lie on devices into pinned memory, by copies that go on by themselves.
//
//   fetch.add(origin, offset, place);       for each part
//   while (fetch.start(scratch)) {          until nothing is left
//     ... fetch.is_done(), or fetch.wait()
//     fetch.land();
//   }
//
// Used by one thread, whose lanes it uses. The memory stays until what was started is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transfer/device_source.h"
#include "transfer/origin.h"

namespace penstock {

class Fetch {
 public:
  // `offset`: in the origin, which lies on a device.
  void add(const Origin& origin, std::uint64_t offset, std::span<std::byte> to);

  // Starts copies, as many as can go on at once; false when there are none left to start. `scratch`: for what the host
  // has to put in order, with room for eight elements at least. Throws Error with nothing under way.
  bool start(std::span<std::byte> scratch);

  // Of what was started last.
  bool is_done() noexcept;
  void wait() noexcept;
  // After it is done. Throws what went wrong with it.
  void land();

 private:
  struct Part {
    const DeviceSource* source;
    std::uint64_t offset;
    std::span<std::byte> to;
  };
  // A round on its way to the scratch block.
  struct Arrival {
    const DeviceSource* source;
    DeviceSource::Round round;
    const std::byte* block;
    std::span<std::byte> to;
  };
  struct Flight {
    Lane* lane;
    Lane::Ticket ticket;
  };

  Lane& lane_of(const DeviceSource& source);
  void start_round(Part& part, std::span<std::byte>& scratch);

  std::vector<Part> parts_;
  std::size_t next_ = 0;  // of the parts
  std::vector<Arrival> arrivals_;
  std::vector<Flight> flights_;  // one for each device
};

}  // namespace penstock
