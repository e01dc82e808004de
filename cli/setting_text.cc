#include "setting_text.h"

#include <fmt/format.h>

#include "penstock/words.h"
#include "units.h"

namespace penstock::cli {
namespace {

// The number of the largest unit that divides a block size, and that unit's first letter.
struct BlockSize {
  std::size_t number;
  char unit;
};

BlockSize in_units(std::size_t nbytes) {
  return nbytes % kMiB == 0 ? BlockSize{nbytes / kMiB, 'M'} : BlockSize{nbytes / kKiB, 'K'};
}

std::string_view method_constant(WriteMethod method) {
  switch (method) {
    case WriteMethod::kDirect:
      return "kDirect";
    case WriteMethod::kUncached:
      return "kUncached";
    case WriteMethod::kBuffered:
      return "kBuffered";
    case WriteMethod::kAuto:
      break;
  }
  return "kAuto";
}

}  // namespace

std::string format_setting(const Setting& setting) {
  if (setting.is_default) return "default";
  const bool is_write = setting.method != WriteMethod::kAuto;
  return fmt::format("{:<8}  {:>7} x {}", is_write ? to_word(setting.method) : to_word(setting.io.backend),
                     format_round_size(setting.io.block_size), setting.io.queue_depth);
}

std::string environment_for(const Setting& setting) {
  std::string out;
  if (setting.io.backend != Backend::kAuto) out += fmt::format("PENSTOCK_BACKEND={} ", to_word(setting.io.backend));
  const BlockSize block = in_units(setting.io.block_size);
  return out + fmt::format("PENSTOCK_BLOCK_SIZE={}{} PENSTOCK_QUEUE_DEPTH={}", block.number, block.unit,
                           setting.io.queue_depth);
}

std::string cpp_for(const Setting& setting) {
  std::string out;
  if (setting.method != WriteMethod::kAuto) {
    out += fmt::format("options.method = WriteMethod::{}; ", method_constant(setting.method));
  }
  out += "options.io = {";
  if (setting.io.backend != Backend::kAuto) {
    out += fmt::format(".backend = Backend::{}, ", setting.io.backend == Backend::kUring ? "kUring" : "kThreads");
  }
  const BlockSize block = in_units(setting.io.block_size);
  return out + fmt::format(".block_size = {} << {}, .queue_depth = {}}};", block.number, block.unit == 'M' ? 20 : 10,
                           setting.io.queue_depth);
}

std::string python_for(const Setting& setting) {
  std::string out;
  if (setting.method != WriteMethod::kAuto) out += fmt::format("method=\"{}\", ", to_word(setting.method));
  if (setting.io.backend != Backend::kAuto) out += fmt::format("backend=\"{}\", ", to_word(setting.io.backend));
  const BlockSize block = in_units(setting.io.block_size);
  return out + fmt::format("block_size=\"{}{}iB\", queue_depth={}", block.number, block.unit, setting.io.queue_depth);
}

}  // namespace penstock::cli
