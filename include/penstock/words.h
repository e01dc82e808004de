// The words for choices: what Python takes as arguments, what the environment variables take, what the command prints.
// There is one table per enumeration, in the order in which messages list them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/export.h"
#include "penstock/options.h"

namespace PENSTOCK_EXPORT penstock {

template <typename Choice>
struct Word {
  Choice choice;
  std::string_view word;
};

template <typename Choice>
inline constexpr auto kWords = nullptr;  // no table: not an enumeration that has words

template <>
inline constexpr auto kWords<Backend> = std::to_array<Word<Backend>>({
    {Backend::kAuto, "auto"},
    {Backend::kUring, "uring"},
    {Backend::kThreads, "threads"},
});

template <>
inline constexpr auto kWords<CachePolicy> = std::to_array<Word<CachePolicy>>({
    {CachePolicy::kAuto, "auto"},
    {CachePolicy::kCopy, "copy"},
    {CachePolicy::kDirect, "direct"},
    {CachePolicy::kBuffered, "buffered"},
    {CachePolicy::kMap, "mmap"},
});

template <>
inline constexpr auto kWords<Landing> = std::to_array<Word<Landing>>({
    {Landing::kAuto, "auto"},
    {Landing::kInPlace, "in_place"},
    {Landing::kStaged, "staged"},
});

template <>
inline constexpr auto kWords<WriteMethod> = std::to_array<Word<WriteMethod>>({
    {WriteMethod::kAuto, "auto"},
    {WriteMethod::kDirect, "direct"},
    {WriteMethod::kBuffered, "buffered"},
});

template <>
inline constexpr auto kWords<DirectStorage> = std::to_array<Word<DirectStorage>>({
    {DirectStorage::kAuto, "auto"},
    {DirectStorage::kOn, "on"},
    {DirectStorage::kOff, "off"},
});

template <>
inline constexpr auto kWords<Verify> = std::to_array<Word<Verify>>({
    {Verify::kOff, "off"},
    {Verify::kAny, "any"},
    {Verify::kIfAny, "if-any"},
    {Verify::kSeal, "seal"},
    {Verify::kStored, "stored"},
    {Verify::kSha256, "sha256"},
});

template <>
inline constexpr auto kWords<OpaqueValues> = std::to_array<Word<OpaqueValues>>({
    {OpaqueValues::kRefuse, "refuse"},
    {OpaqueValues::kKeep, "keep"},
});

template <>
inline constexpr auto kWords<SharedTensors> = std::to_array<Word<SharedTensors>>({
    {SharedTensors::kRefuse, "refuse"},
    {SharedTensors::kDeduplicate, "deduplicate"},
    {SharedTensors::kDuplicate, "duplicate"},
});

template <typename Choice>
constexpr std::string_view to_word(Choice choice) noexcept {
  for (const auto& entry : kWords<Choice>) {
    if (entry.choice == choice) return entry.word;
  }
  return {};
}

// The inverse; nothing for a word that is not one.
template <typename Choice>
constexpr std::optional<Choice> from_word(std::string_view word) noexcept {
  for (const auto& entry : kWords<Choice>) {
    if (entry.word == word) return entry.choice;
  }
  return std::nullopt;
}

// All of them, for a message: "auto", "uring", "threads".
template <typename Choice>
std::string list_words() {
  std::string list;
  for (const auto& entry : kWords<Choice>) {
    list += list.empty() ? "\"" : ", \"";
    list += entry.word;
    list += '"';
  }
  return list;
}

}  // namespace penstock
