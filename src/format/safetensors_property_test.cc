// Properties that hold for any file: made ones survive, damaged ones are refused or consistent.
#include <gtest/gtest.h>

#include <set>

#include "format/test_files.h"
#include "format/test_random.h"

namespace penstock {
namespace {

using test::golden_file;
using test::parse_safetensors;

class Random : public test::Random {
 public:
  using test::Random::Random;

  TensorSpec spec(std::string name) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.dtype = static_cast<DType>(below(static_cast<int>(DType::kU64) + 1));
    for (std::uint64_t i = below(4); i > 0; --i) spec.shape.push_back(static_cast<std::int64_t>(below(5)));
    if (dtype_bits(spec.dtype) < 8) spec.shape.push_back(8);
    spec.nbytes = tensor_nbytes(spec.dtype, spec.shape, "random", spec.name);
    return spec;
  }
};

std::string file_of(const FilePlan& plan) {
  std::string file(reinterpret_cast<const char*>(plan.prefix.data()), plan.prefix.size());
  file.resize(plan.file_size, 'x');
  return file;
}

// The tensors cover the file from the end of the header to its end, in order, without a hole, under different names.
void expect_consistent(const Layout& layout, std::uint64_t file_size) {
  std::uint64_t next = layout.tensors.empty() ? file_size : layout.tensors.front().offset;
  std::set<std::string> names;
  for (const TensorInfo& tensor : layout.tensors) {
    ASSERT_EQ(tensor.offset, next);
    ASSERT_EQ(tensor.nbytes, tensor_nbytes(tensor.dtype, tensor.shape, "f", tensor.name));
    ASSERT_TRUE(names.insert(tensor.name).second) << tensor.name;
    next += tensor.nbytes;
  }
  ASSERT_EQ(next, file_size);
}

// Parses to something consistent, or throws Error(kFormat) of one line that names the file.
void expect_parsed_or_refused(const std::string& file) {
  try {
    const Layout layout = parse_safetensors(file);
    expect_consistent(layout, file.size());
  } catch (const Error& error) {
    const std::string message = error.what();
    ASSERT_EQ(error.kind(), ErrorKind::kFormat) << message;
    ASSERT_EQ(message.rfind("f: ", 0), 0U) << message;
    ASSERT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// Every flip of one bit, and characters that mean something in a header.
std::string changes_of(char byte) {
  std::string changes = "\"\\{}[],:0123456789-.eE \n";
  changes += '\0';
  for (int bit = 0; bit < 8; ++bit) changes += static_cast<char>(byte ^ (1 << bit));
  return changes;
}

TEST(SafetensorsProperty, random_layouts_survive_encoding_and_parsing) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random random(seed);
    std::vector<TensorSpec> specs;
    std::set<std::string> names;
    for (std::uint64_t i = random.below(30); i > 0; --i) {
      const std::string name = random.name();
      if (names.insert(name).second) specs.push_back(random.spec(name));
    }
    Metadata metadata;
    for (std::uint64_t i = random.below(4); i > 0; --i) metadata[random.name()] = random.name();

    const FilePlan plan = safetensors::encode(specs, metadata);
    const std::string file = file_of(plan);
    const Layout layout = parse_safetensors(file);
    ASSERT_EQ(layout.metadata, metadata);
    ASSERT_EQ(layout.tensors.size(), specs.size());
    expect_consistent(layout, file.size());
    std::map<std::string, const TensorInfo*> found;
    for (const TensorInfo& tensor : layout.tensors) found[tensor.name] = &tensor;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const TensorInfo* tensor = found.at(specs[i].name);
      ASSERT_EQ(tensor->dtype, specs[i].dtype);
      ASSERT_EQ(tensor->shape, specs[i].shape);
      ASSERT_EQ(tensor->offset, plan.offsets[i]);
      ASSERT_EQ(tensor->nbytes, specs[i].nbytes);
    }
  }
}

TEST(SafetensorsProperty, parsed_order_and_planned_order_differ_at_most_among_empty_tensors) {
  // So a list of checksums (an empty tensor's is 0) means the same in both.
  for (unsigned seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::vector<TensorSpec> specs;
    for (std::uint64_t i = 0; i < 20; ++i)
      specs.push_back(random.spec(std::to_string(random.below(1000)) + "." + std::to_string(i)));
    const FilePlan plan = safetensors::encode(specs, {});
    const Layout layout = parse_safetensors(file_of(plan));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const TensorSpec& planned = specs[plan.order[i]];
      ASSERT_EQ(planned.nbytes, layout.tensors[i].nbytes);
      if (planned.nbytes > 0) {
        ASSERT_EQ(planned.name, layout.tensors[i].name);
      }
    }
  }
}

TEST(SafetensorsProperty, every_truncation_is_refused) {
  for (const char* name : {"shapes", "names", "metadata", "nothing", "six_bits"}) {
    const std::string file = golden_file(std::string("safetensors/") + name + ".safetensors");
    for (std::size_t length = 0; length < file.size(); ++length) {
      EXPECT_NE(test::format_error([&] { parse_safetensors(file.substr(0, length)); }), "no error")
          << name << " " << length;
    }
  }
}

TEST(SafetensorsProperty, every_extension_is_refused) {
  const std::string file = golden_file("safetensors/shapes.safetensors");
  for (std::size_t extra = 1; extra < 20; ++extra) {
    EXPECT_NE(test::format_error([&] { parse_safetensors(file + std::string(extra, '\0')); }), "no error") << extra;
  }
}

TEST(SafetensorsProperty, every_changed_byte_gives_a_consistent_layout_or_an_error) {
  for (const char* name : {"shapes", "names", "metadata", "nothing", "six_bits"}) {
    const std::string file = golden_file(std::string("safetensors/") + name + ".safetensors");
    ASSERT_FALSE(file.empty());
    for (std::size_t place = 0; place < file.size(); ++place) {
      for (const char value : changes_of(file[place])) {
        std::string changed = file;
        changed[place] = value;
        expect_parsed_or_refused(changed);
        if (HasFatalFailure()) FAIL() << name << ": byte " << place << " as " << static_cast<int>(value);
      }
    }
  }
}

TEST(SafetensorsProperty, every_removed_or_doubled_byte_gives_a_consistent_layout_or_an_error) {
  const std::string file = golden_file("safetensors/shapes.safetensors");
  for (std::size_t place = 0; place < file.size(); ++place) {
    expect_parsed_or_refused(std::string(file).erase(place, 1));
    expect_parsed_or_refused(std::string(file).insert(place, 1, file[place]));
  }
}

TEST(SafetensorsProperty, a_hundred_thousand_tensors_survive) {
  std::vector<TensorSpec> specs(100'000);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i] = {"model.layers." + std::to_string(i * 7919 % 100'000) + ".weight",
                i % 2 == 0 ? DType::kBF16 : DType::kF32,
                {2, 2},
                0};
    specs[i].nbytes = tensor_nbytes(specs[i].dtype, specs[i].shape, "f", specs[i].name);
  }
  const FilePlan plan = safetensors::encode(specs, {});
  const Layout layout = parse_safetensors(file_of(plan));
  ASSERT_EQ(layout.tensors.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) ASSERT_EQ(layout.tensors[i].name, specs[plan.order[i]].name);
}

}  // namespace
}  // namespace penstock
