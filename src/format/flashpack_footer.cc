#include "format/flashpack_footer.h"

#include <limits>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "base/json_cursor.h"

namespace penstock::flashpack {
namespace {

constexpr std::size_t kUsualRank = 4;

class FooterParser {
 public:
  FooterParser(std::string_view text, std::uint64_t offset, std::string_view path)
      : cursor_(text, offset, path), path_(path) {}

  FooterRecord parse();

 private:
  // The fields of one object: known by name, each at most once.
  struct Field {
    std::string_view name;
    bool required = true;
    bool seen = false;
  };

  template <typename What, typename Read>
  void parse_object(const What& what, std::span<Field> fields, const Read& read);
  void parse_format();
  void parse_metadata();
  void parse_blocks();
  void parse_block(BlockRecord& block);
  void parse_index();
  void parse_tensor(TensorRecord& tensor);
  void parse_shape(TensorRecord& tensor);
  DType parse_dtype_name(std::string_view what);
  void check_version();
  [[noreturn]] void fail_kind(std::string_view expected, std::string_view of);

  JsonCursor cursor_;
  std::string_view path_;
  std::string key_scratch_;
  std::string value_scratch_;
  FooterRecord record_;
};

// Calls read(number of the field) with the cursor before its value. what() names the object, for messages.
template <typename What, typename Read>
void FooterParser::parse_object(const What& what, std::span<Field> fields, const Read& read) {
  if (!cursor_.take('{')) fail_kind("an object", what());
  for (bool first = true; cursor_.more('}', first);) {
    const std::string_view key = cursor_.string(key_scratch_);
    std::size_t number = 0;
    while (number < fields.size() && fields[number].name != key) ++number;
    if (number == fields.size()) {
      if (key == "fpz") cursor_.fail(fmt::format("{} is compressed (\"fpz\"), which this version can't read", what()));
      cursor_.fail(fmt::format("{} has the unknown field {}", what(), in_quotes(key)));
    }
    if (fields[number].seen) cursor_.fail(fmt::format("{} has \"{}\" twice", what(), fields[number].name));
    fields[number].seen = true;
    cursor_.expect(':');
    read(number);
  }
  for (const Field& field : fields) {
    if (field.required && !field.seen) throw_format(path_, "{}: \"{}\" is missing", what(), field.name);
  }
}

FooterRecord FooterParser::parse() {
  Field fields[] = {{"format"},
                    {"target_dtype", false},
                    {"align_bytes", false},
                    {"total_payload_bytes", false},
                    {"total_elems", false},
                    {"macroblocks", false},
                    {"index"},
                    {"metadata", false}};
  parse_object([] { return std::string("the footer"); }, fields,
               [&](std::size_t number) {
                 switch (number) {
                   case 0:
                     return parse_format();
                   case 1:
                     record_.target_dtype = parse_dtype_name("target_dtype");
                     return;
                   case 2:
                     static_cast<void>(cursor_.integer());
                     return;
                   case 3:
                     record_.payload_bytes = cursor_.integer();
                     return;
                   case 4:
                     record_.total_elements = cursor_.integer();
                     return;
                   case 5:
                     return parse_blocks();
                   case 6:
                     return parse_index();
                   default:
                     return parse_metadata();
                 }
               });
  if (!cursor_.at_end()) {
    cursor_.fail(fmt::format("expected nothing after the footer's JSON, found {}", cursor_.describe_next()));
  }
  check_version();
  return std::move(record_);
}

void FooterParser::parse_format() {
  if (cursor_.peek() != '"') fail_kind("a string", "format");
  const std::string_view format = cursor_.string(value_scratch_);
  record_.version = format == kFormatV3 ? 3 : format == kFormatV4 ? 4 : 0;
  if (record_.version == 0) {
    cursor_.fail(
        fmt::format("Unexpected format: {}, expected \"{}\" or \"{}\"", in_quotes(format), kFormatV3, kFormatV4));
  }
}

// What each version must have, and what it can't.
void FooterParser::check_version() {
  if (record_.version == 3) {
    if (!record_.target_dtype) throw_format(path_, "the footer: \"target_dtype\" is missing");
    if (!record_.total_elements) throw_format(path_, "the footer: \"total_elems\" is missing");
    if (!record_.blocks.empty()) throw_format(path_, "the footer has \"macroblocks\", which {} has not", kFormatV3);
  } else {
    if (record_.blocks.empty()) throw_format(path_, "Missing macroblock metadata: \"macroblocks\" is missing or empty");
    if (record_.target_dtype) throw_format(path_, "the footer has \"target_dtype\", which {} has not", kFormatV4);
  }
}

void FooterParser::parse_metadata() {
  if (!cursor_.take('{')) fail_kind("an object", "metadata");
  for (bool first = true; cursor_.more('}', first);) {
    const std::string_view key = cursor_.string(key_scratch_);
    cursor_.expect(':');
    if (cursor_.peek() != '"') fail_kind("a string", fmt::format("metadata {}", in_quotes(key)));
    const std::string_view value = cursor_.string(value_scratch_);
    if (!record_.metadata.emplace(key, value).second) {
      throw_format(path_, "metadata: the key {} appears twice", in_quotes(key));
    }
  }
}

void FooterParser::parse_blocks() {
  if (!cursor_.take('[')) fail_kind("an array", "macroblocks");
  for (bool first = true; cursor_.more(']', first);) parse_block(record_.blocks.emplace_back());
}

void FooterParser::parse_block(BlockRecord& block) {
  Field fields[] = {{"dtype"}, {"offset_bytes"}, {"length_bytes"}, {"length_elems"}};
  const auto what = [this] { return fmt::format("macroblock {}", record_.blocks.size() - 1); };
  parse_object(what, fields, [&](std::size_t number) {
    if (number == 0) {
      block.dtype = parse_dtype_name(what());
    } else {
      (number == 1 ? block.offset_bytes : number == 2 ? block.length_bytes : block.length_elements) = cursor_.integer();
    }
  });
}

void FooterParser::parse_index() {
  if (!cursor_.take('[')) fail_kind("an array", "index");
  for (bool first = true; cursor_.more(']', first);) parse_tensor(record_.tensors.emplace_back());
}

void FooterParser::parse_tensor(TensorRecord& tensor) {
  Field fields[] = {{"name"}, {"shape"}, {"offset"}, {"length"}, {"macroblock", false}};
  // By number: the name may come last.
  const auto what = [this] { return fmt::format("index entry {}", record_.tensors.size() - 1); };
  parse_object(what, fields, [&](std::size_t number) {
    if (number == 0) {
      if (cursor_.peek() != '"') fail_kind("a string", "the name of a tensor");
      tensor.name = cursor_.string(value_scratch_);
    } else if (number == 1) {
      parse_shape(tensor);
    } else {
      (number == 2 ? tensor.offset : number == 3 ? tensor.length : tensor.block) = cursor_.integer();
    }
  });
}

void FooterParser::parse_shape(TensorRecord& tensor) {
  if (!cursor_.take('[')) fail_kind("an array", "the shape of a tensor");
  constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  tensor.shape.reserve(kUsualRank);
  for (bool first = true; cursor_.more(']', first);) {
    const std::uint64_t dimension = cursor_.integer();
    if (dimension > kLargest) cursor_.fail(fmt::format("a dimension of {}, more than 2^63 - 1", dimension));
    tensor.shape.push_back(static_cast<std::int64_t>(dimension));
  }
}

DType FooterParser::parse_dtype_name(std::string_view what) {
  if (cursor_.peek() != '"') fail_kind("a string", fmt::format("the dtype of {}", what));
  const std::string_view name = cursor_.string(value_scratch_);
  const auto dtype = parse_torch_dtype(name);
  if (!dtype || dtype_bits(*dtype) < 8) {
    cursor_.fail(fmt::format("{}: Unsupported dtype string in metadata: {}", what, in_quotes(name)));
  }
  return *dtype;
}

void FooterParser::fail_kind(std::string_view expected, std::string_view of) {
  const std::string found = cursor_.describe_next();
  cursor_.fail(fmt::format("{}: expected {}, found {}", of, expected, found));
}

}  // namespace

FooterRecord parse_footer_text(std::string_view text, std::uint64_t offset, std::string_view path) {
  if (const auto place = find_invalid_utf8(text)) {
    throw_format(path, "byte {}: the footer is not valid UTF-8", offset + *place);
  }
  return FooterParser(text, offset, path).parse();
}

}  // namespace penstock::flashpack
