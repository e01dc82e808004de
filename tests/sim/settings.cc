#include "settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace sim {
namespace {

const std::map<std::string, std::uint64_t Settings::*>& numbers() {
  static const std::map<std::string, std::uint64_t Settings::*> table = {
      {"devices", &Settings::devices},
      {"memory", &Settings::memory},
      {"driver", &Settings::driver},
      {"link_to_device", &Settings::link_to_device},
      {"link_to_host", &Settings::link_to_host},
      {"delay", &Settings::delay},
      {"seed", &Settings::seed},
      {"check", &Settings::check},
      {"keep", &Settings::keep},
      {"unified", &Settings::unified},
      {"pinned_limit", &Settings::pinned_limit},
      {"register_limit", &Settings::register_limit},
      {"file_buffered", &Settings::file_buffered},
      {"file_most_bytes", &Settings::file_most_bytes},
      {"file_closes_stdin", &Settings::file_closes_stdin},
  };
  return table;
}

template <typename Number>
bool parse(const std::string& value, Number& number) {
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  return error == std::errc() && stop == end;
}

}  // namespace

bool set(Settings& settings, const std::string& name, const std::string& value) {
  if (name == "pageable") {
    settings.refuse_pageable = value == "refuse" ? 1 : 0;
    return value == "refuse" || value == "count";
  }
  if (name == "link") {
    return set(settings, "link_to_device", value) && set(settings, "link_to_host", value);
  }
  if (name == "numa") {
    return parse(value, settings.numa);
  }
  const auto found = numbers().find(name);
  return found != numbers().end() && parse(value, settings.*found->second) && settings.devices <= 16;
}

Settings settings_from_environment() {
  Settings settings;
  const auto from_environment = [&](const std::string& name) {
    std::string variable = "PENSTOCK_SIM_" + name;
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
    const char* const value = std::getenv(variable.c_str());
    if (value != nullptr && !set(settings, name, value)) {
      std::fprintf(stderr, "simulated accelerator: %s=%s is not a setting\n", variable.c_str(), value);
      std::abort();
    }
  };
  for (const char* name : {"link", "pageable", "numa"}) {
    from_environment(name);
  }
  for (const auto& [name, member] : numbers()) {
    from_environment(name);
  }
  return settings;
}

}  // namespace sim
