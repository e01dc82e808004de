#include "transfer/origin.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cast.h"

namespace penstock {

Origin skip(const Origin& origin, std::uint64_t nbytes) {
  Origin rest;
  if (origin.device != nullptr) {
    rest.device = origin.device;
    rest.device_offset = origin.device_offset + nbytes;
  } else if (origin.data != nullptr) {
    rest.data = origin.data + nbytes;
  } else {
    rest.fill = [fill = origin.fill, nbytes](std::uint64_t offset, std::span<std::byte> bytes) {
      fill(nbytes + offset, bytes);
    };
  }
  return rest;
}

Origin cast_origin(Origin origin, DType from, DType to) {
  const std::uint64_t from_width = dtype_bits(from) / 8;
  const std::uint64_t to_width = dtype_bits(to) / 8;
  return {nullptr, [=, origin = std::move(origin)](std::uint64_t offset, std::span<std::byte> out) {
            // Elements: few stay in the cache; a function is not called for few.
            const std::uint64_t most = (origin.data == nullptr ? 256 : 16) * kKiB;
            std::vector<std::byte> buffer;
            const std::uint64_t count = out.size() / to_width;
            for (std::uint64_t done = 0; done < count; done += most) {
              const std::uint64_t step = std::min(most, count - done);
              const std::uint64_t at = (offset / to_width + done) * from_width;
              const std::byte* source = origin.data == nullptr ? nullptr : origin.data + at;
              if (source == nullptr) {
                buffer.resize(step * from_width);
                origin.fill(at, buffer);
                source = buffer.data();
              }
              cast_elements(from, source, to, out.data() + done * to_width, step);
            }
          }};
}

Origin by_whole_elements(Origin origin, std::uint64_t width) {
  if (!origin.fill || width <= 1) return origin;
  return {nullptr, [fill = std::move(origin.fill), width](std::uint64_t offset, std::span<std::byte> bytes) {
            if (offset % width == 0 && bytes.size() % width == 0) return fill(offset, bytes);
            std::vector<std::byte> element(width);
            const std::uint64_t end = offset + bytes.size();
            while (offset < end) {
              const std::uint64_t skipped = offset % width;
              const std::uint64_t whole = (end - offset) / width * width;
              std::uint64_t step = whole;
              if (skipped == 0 && whole > 0) {
                fill(offset, bytes.first(whole));
              } else {
                fill(offset - skipped, element);
                step = std::min(width - skipped, end - offset);
                std::copy_n(element.begin() + static_cast<std::ptrdiff_t>(skipped), step, bytes.begin());
              }
              bytes = bytes.subspan(step);
              offset += step;
            }
          }};
}

}  // namespace penstock
