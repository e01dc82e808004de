// TorchCheckpoint: what a file of torch.save holds, as data. Nothing in it is executed.
//
// Tensors of such a file are read by Reader, like any other's, under their paths in the tree. This is for those who
// want the tree itself: dicts in dicts, numbers, strings, and tensors as views of storages. Values that are more than
// data, such as objects of somebody's class, are refused or left opaque.
//
// A checkpoint is immutable and may be used from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/export.h"
#include "penstock/reader.h"

namespace PENSTOCK_EXPORT penstock {

// The memory that tensors are views of.
struct TorchStorage {
  std::string key;       // its name among the file's storages: "0", "1" ...
  std::string location;  // where it was when it was saved: "cpu", "cuda:0" ...
  DType dtype = DType::kU8;
  std::uint64_t count = 0;  // elements
};

struct TorchTensor {
  std::uint32_t storage = 0;
  DType dtype = DType::kU8;
  std::uint64_t offset = 0;  // bytes, from the start of the storage
  Shape shape;
  Shape strides;  // elements
  bool requires_grad = false;
  bool is_parameter = false;
  bool conjugated = false;  // its elements are the conjugates of what is stored
  bool negated = false;     // its elements are the negatives of what is stored
};

enum class TorchKind : std::uint8_t {
  kNone,
  kBool,
  kInteger,
  kBigInteger,  // little-endian two's complement in `text`
  kFloat,
  kComplex,  // number, imaginary
  kString,
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kDict,
  kOrderedDict,
  kSet,
  kFrozenSet,
  kSize,         // torch.Size; items
  kDevice,       // torch.device; items: its type and, if there is one, its index
  kDType,        // torch.dtype; `text` is torch's name for it
  kTensor,       // `integer` is its number among tensors()
  kStorage,      // a storage that stands for itself, or a part of one: see TorchStoragePart
  kNumpyScalar,  // `text` holds the bytes, `name` is its dtype, such as "<f8"
  kNumpyArray,   // the same; items[0] is its shape
  kCounter,      // collections.Counter; entries
  kLayout,       // torch.layout; `text` is torch's name for it, such as "torch.sparse_coo"
  kScheme,       // torch.qscheme; `text` is torch's name for it
  kRebuilt,  // a sparse, quantized or nested tensor: `name` is the function of torch that makes it, items its arguments
  kOpaque,   // more than data: `name` is its class, or what else would have been called
};

// How the pickle would have made an opaque value. Each part is a value again; kNoValue and empty where there is none.
struct TorchOpaque {
  std::uint32_t arguments = ~std::uint32_t{0};                   // a tuple; none for a class or a function by itself
  std::vector<std::uint32_t> states;                             // most often one, a dict of its attributes
  std::vector<std::uint32_t> items;                              // what was appended to it
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entries;  // what was set in it, by key
};

// A storage that stands for itself: `count` elements of a type of torch's, from a byte of the storage on.
struct TorchStoragePart {
  std::uint32_t storage = 0;
  std::string_view dtype;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

// A value of the tree. Values are numbered; the same number in two places is the same object. In a hostile file a value
// may contain itself.
struct TorchValue {
  TorchKind kind = TorchKind::kNone;
  std::int64_t integer = 0;  // kBool too
  double number = 0;
  double imaginary = 0;
  std::string_view text;
  std::string name;
  bool column_major = false;  // kNumpyArray
  std::vector<std::uint32_t> items;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entries;  // of dicts: key, value
  std::uint32_t attributes = kNoValue;                           // a dict of what Python would set on the object
  TorchStoragePart part;                                         // kStorage
  TorchOpaque opaque;                                            // kOpaque

  static constexpr std::uint32_t kNoValue = ~std::uint32_t{0};
};

class TorchCheckpoint {
 public:
  struct State;  // the library's own

  // Reads the pickle and checks it against the file; no storage is read. Throws Error; Error(kUnsupportedFormat) that
  // names the first value that is more than data, unless these are to be kept.
  explicit TorchCheckpoint(const std::filesystem::path& path, OpaqueValues opaque = OpaqueValues::kRefuse);
  TorchCheckpoint(TorchCheckpoint&&) noexcept;
  TorchCheckpoint& operator=(TorchCheckpoint&&) noexcept;
  ~TorchCheckpoint();

  std::span<const TorchStorage> storages() const noexcept;
  std::span<const TorchTensor> tensors() const noexcept;

  std::uint32_t root() const noexcept;
  // Throws Error(kUnsupportedFormat) that names it for a value that is more than data, unless these are to be kept.
  TorchValue value(std::uint32_t number) const;

  // True when a value can be made only once its tensors were read (kRebuilt), or storages do not lie in the file as
  // they are: it takes more than a look at the file to make the tree.
  bool needs_data() const noexcept;

  // Where a value stands in the file, for messages: "model.pt: data.pkl: byte 17".
  std::string place(std::uint32_t number) const;

  // The storages, each as a tensor of bytes named by its key, over the file as it was opened.
  Reader open_storages() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace penstock
