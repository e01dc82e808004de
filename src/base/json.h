// The JSON edge: what writers of JSON text and messages about it need. Parsing is simdjson's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// Where the first byte stands that breaks UTF-8; nothing when all of `text` is valid (surrogates and overlong forms are
// not).
std::optional<std::size_t> find_invalid_utf8(std::string_view text) noexcept;

// Appends `text` as a JSON string. It must be valid UTF-8. Escapes what JSON demands and nothing more: \" \\ \b \f \n
// \r \t, other control characters as \u00xx in lower case.
void append_json_string(std::string& out, std::string_view text);

// Appends a decimal number.
void append_json_number(std::string& out, std::uint64_t number);

}  // namespace penstock
