#include "format/torch_pickle.h"

#include <cstring>
#include <map>

#include "base/error.h"
#include "base/json.h"

namespace penstock::torch {
namespace {

// Dicts and lists are written in batches of this size.
constexpr std::size_t kBatch = 1000;

// The class of a storage; empty for types that are saved as bytes with a dtype beside them.
std::string_view storage_class(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "DoubleStorage";
    case DType::kF32:
      return "FloatStorage";
    case DType::kF16:
      return "HalfStorage";
    case DType::kBF16:
      return "BFloat16Storage";
    case DType::kI64:
      return "LongStorage";
    case DType::kI32:
      return "IntStorage";
    case DType::kI16:
      return "ShortStorage";
    case DType::kI8:
      return "CharStorage";
    case DType::kU8:
      return "ByteStorage";
    case DType::kBool:
      return "BoolStorage";
    case DType::kC64:
      return "ComplexFloatStorage";
    case DType::kC128:
      return "ComplexDoubleStorage";
    default:
      return {};
  }
}

class Pickler {
 public:
  Pickler() { text_ += std::string_view("\x80\x02", 2); }

  std::string state_dict(std::span<const TensorSpec> specs, Flavour flavour) && {
    flavour_ = flavour;
    text_ += '}';
    put();
    // A full batch is followed by another one, even if nothing is left for it.
    for (std::size_t first = 0; first < specs.size() || (first > 0 && first == specs.size()); first += kBatch) {
      const std::size_t last = std::min(specs.size(), first + kBatch);
      if (specs.size() > 1) text_ += '(';
      for (std::size_t i = first; i < last; ++i) {
        string(specs[i].name);
        tensor(specs[i], std::to_string(i));
      }
      text_ += specs.size() > 1 ? 'u' : 's';
    }
    text_ += '.';
    return std::move(text_);
  }

  std::string strings(std::span<const std::string> strings) && {
    text_ += ']';
    put();
    for (std::size_t first = 0; first < strings.size(); first += kBatch) {
      const std::size_t last = std::min(strings.size(), first + kBatch);
      if (strings.size() > 1) text_ += '(';
      for (std::size_t i = first; i < last; ++i) string(strings[i]);
      text_ += strings.size() > 1 ? 'e' : 'a';
    }
    text_ += '.';
    return std::move(text_);
  }

 private:
  // Everything gets a number, whether or not it comes again.
  void put() {
    if (next_ < 256) {
      text_ += 'q';
      text_ += static_cast<char>(next_);
    } else {
      text_ += 'r';
      number32(next_);
    }
    ++next_;
  }

  void get(std::uint32_t number) {
    if (number < 256) {
      text_ += 'h';
      text_ += static_cast<char>(number);
    } else {
      text_ += 'j';
      number32(number);
    }
  }

  void number32(std::uint32_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }

  void string(std::string_view text) {
    if (find_invalid_utf8(text)) throw_argument("the tensor name {} is not valid UTF-8", in_quotes(text));
    text_ += 'X';
    number32(static_cast<std::uint32_t>(text.size()));
    text_ += text;
    put();
  }

  // Strings and globals of ours that come again are recalled.
  void known(std::string_view key, char kind) {
    const auto [entry, fresh] = memo_.emplace(std::string(key), next_);
    if (!fresh) return get(entry->second);
    if (kind == 'X') return string(key);
    text_ += 'c';
    text_ += key;
    text_ += '\n';
    put();
  }

  void integer(std::uint64_t value) {
    if (value < 256) {
      text_ += 'K';
      text_ += static_cast<char>(value);
    } else if (value < 65536) {
      text_ += 'M';
      const auto narrow = static_cast<std::uint16_t>(value);
      text_.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    } else if (value < 0x80000000) {
      text_ += 'J';
      number32(static_cast<std::uint32_t>(value));
    } else {
      std::string digits;
      for (std::uint64_t rest = value; rest != 0; rest >>= 8) digits += static_cast<char>(rest & 0xFF);
      if ((digits.back() & 0x80) != 0) digits += '\0';
      text_ += '\x8a';
      text_ += static_cast<char>(digits.size());
      text_ += digits;
    }
  }

  void tuple(std::span<const std::int64_t> values) {
    if (values.empty()) {
      text_ += ')';
      return;  // the one tuple that has no number
    }
    if (values.size() > 3) text_ += '(';
    for (const std::int64_t value : values) integer(static_cast<std::uint64_t>(value));
    text_ += values.size() > 3 ? 't' : static_cast<char>(0x84 + values.size());
    put();
  }

  void tensor(const TensorSpec& spec, const std::string& key) {
    const std::string_view name = storage_class(spec.dtype);
    const bool typed = !name.empty();
    if (!typed && dtype_bits(spec.dtype) < 8) {
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("tensor {}: torch has no {}", in_quotes(spec.name), dtype_name(spec.dtype)));
    }
    known(typed ? "torch._utils\n_rebuild_tensor_v2" : "torch._utils\n_rebuild_tensor_v3", 'c');
    text_ += "((";
    known("storage", 'X');
    known(typed ? fmt::format("torch\n{}", name) : "torch.storage\nUntypedStorage", 'c');
    string(key);
    known("cpu", 'X');
    integer(spec.nbytes / storage_width(spec.dtype));
    if (flavour_ == Flavour::kLegacy) text_ += 'N';
    text_ += 't';
    put();
    text_ += 'Q';
    integer(0);
    tuple(spec.shape);
    tuple(row_major_strides(spec.shape));
    text_ += '\x89';
    known("collections\nOrderedDict", 'c');
    text_ += ")R";
    put();
    if (!typed) known(fmt::format("torch\n{}", dtype_torch_name(spec.dtype)), 'c');
    text_ += 't';
    put();
    text_ += 'R';
    put();
  }

  static Shape row_major_strides(const Shape& shape) {
    Shape strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i > 0; --i) {
      strides[i - 1] = stride;
      stride *= std::max<std::int64_t>(shape[i - 1], 1);
    }
    return strides;
  }

  std::string text_;
  Flavour flavour_ = Flavour::kZip;
  std::uint32_t next_ = 0;  // number of the next memo entry
  std::map<std::string, std::uint32_t> memo_;
};

}  // namespace

std::uint64_t storage_width(DType dtype) noexcept {
  return storage_class(dtype).empty() ? 1 : dtype_bits(dtype) / 8;
}

std::string pickle_state_dict(std::span<const TensorSpec> specs, Flavour flavour) {
  return Pickler().state_dict(specs, flavour);
}

std::string pickle_strings(std::span<const std::string> strings) {
  return Pickler().strings(strings);
}

}  // namespace penstock::torch
