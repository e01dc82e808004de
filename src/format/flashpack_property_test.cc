// Properties that hold for any FlashPack file: made ones survive, damaged ones are refused or consistent.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/bytes.h"
#include "format/test_files.h"
#include "format/test_random.h"

namespace penstock {
namespace {

using flashpack::Footer;
using test::golden_file;
using test::parse_flashpack;

class Random : public test::Random {
 public:
  using test::Random::Random;

  // Small ones, and now and then one that counts as large.
  TensorSpec spec(std::string name) {
    auto dtype = DType::kF4;
    while (dtype_bits(dtype) < 8) dtype = static_cast<DType>(below(kDTypeCount));
    Shape shape;
    if (below(10) == 0) {
      shape = {static_cast<std::int64_t>(flashpack::kLargeTensor / (dtype_bits(dtype) / 8) + below(3))};
    } else {
      for (std::uint64_t i = below(4); i > 0; --i) shape.push_back(static_cast<std::int64_t>(below(5)));
    }
    return test::make_spec(std::move(name), dtype, std::move(shape));
  }

  std::vector<TensorSpec> specs(std::uint64_t most) {
    std::vector<TensorSpec> specs = {test::make_spec("something", DType::kU8, {1})};
    std::set<std::string> names = {"something"};
    for (std::uint64_t i = below(most); i > 0; --i) {
      const std::string text = name();
      if (names.insert(text).second) specs.push_back(spec(text));
    }
    return specs;
  }

  FlashPackOptions options() {
    static const std::vector<std::uint64_t> kAlignments = {0, 1, 2, 3, 7, 16, 100, 128, 512, 4096};
    return {kAlignments[below(kAlignments.size())], below(2) == 0, below(2) == 0};
  }
};

// Payload as the plan says, with each tensor's bytes set and the rest zero.
std::string file_of(const FilePlan& plan, std::span<const TensorSpec> specs) {
  std::string file(plan.file_size - plan.suffix.size(), '\0');
  for (std::size_t i = 0; i < specs.size(); ++i) file.replace(plan.offsets[i], specs[i].nbytes, specs[i].nbytes, 'x');
  file.append(reinterpret_cast<const char*>(plan.suffix.data()), plan.suffix.size());
  return file;
}

// Blocks lie in the payload, tensors in a block of their dtype, none overlaps another, names differ.
void expect_consistent(const Footer& footer, std::uint64_t payload) {
  for (const flashpack::Block& block : footer.blocks) {
    ASSERT_LE(block.offset, payload);
    ASSERT_LE(block.nbytes, payload - block.offset);
  }
  std::set<std::string> names;
  std::vector<TensorInfo> tensors = footer.tensors;
  for (const TensorInfo& tensor : tensors) {
    ASSERT_EQ(tensor.nbytes, tensor_nbytes(tensor.dtype, tensor.shape, "f", tensor.name));
    ASSERT_TRUE(names.insert(tensor.name).second) << tensor.name;
    ASSERT_TRUE(std::any_of(footer.blocks.begin(), footer.blocks.end(), [&](const flashpack::Block& block) {
      return block.dtype == tensor.dtype && block.offset <= tensor.offset &&
             tensor.offset + tensor.nbytes <= block.offset + block.nbytes;
    })) << tensor.name;
  }
  sort_by_offset(tensors);
  std::uint64_t next = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.nbytes == 0) continue;
    ASSERT_GE(tensor.offset, next) << tensor.name;
    next = tensor.offset + tensor.nbytes;
  }
}

// Where the footer's text begins.
std::uint64_t payload_of(const std::string& file, const Footer& footer) {
  return file.size() - footer.text.size() - flashpack::kTailBytes;
}

// Parses to something consistent, or throws Error(kFormat) of one line that names the file.
void expect_parsed_or_refused(const std::string& file) {
  try {
    const Footer footer = parse_flashpack(file);
    expect_consistent(footer, payload_of(file, footer));
  } catch (const Error& error) {
    const std::string message = error.what();
    ASSERT_EQ(error.kind(), ErrorKind::kFormat) << message;
    ASSERT_EQ(message.rfind("f: ", 0), 0U) << message;
    ASSERT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

void expect_same(std::span<const TensorSpec> specs, const FilePlan& plan, const Footer& footer) {
  ASSERT_EQ(footer.tensors.size(), specs.size());
  std::map<std::string, const TensorInfo*> found;
  for (const TensorInfo& tensor : footer.tensors) found[tensor.name] = &tensor;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorInfo* tensor = found.at(specs[i].name);
    ASSERT_EQ(tensor->dtype, specs[i].dtype);
    ASSERT_EQ(tensor->shape, specs[i].shape);
    ASSERT_EQ(tensor->offset, plan.offsets[i]);
    ASSERT_EQ(tensor->nbytes, specs[i].nbytes);
  }
}

void expect_aligned(std::span<const TensorSpec> specs, const FilePlan& plan, const FlashPackOptions& options) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::uint64_t width = dtype_bits(specs[i].dtype) / 8;
    const std::uint64_t step = options.align_bytes == 0 ? width : std::lcm(options.align_bytes, width);
    ASSERT_EQ(plan.offsets[i] % step, 0U);
    const bool large = options.align_large && specs[i].nbytes >= flashpack::kLargeTensor;
    ASSERT_EQ(plan.offsets[i] % (large ? 4096 : 1), 0U);
  }
}

// Within a block, in the order of the index: that in which they were given, or by the number of their elements.
void expect_ordered(std::span<const TensorSpec> specs, const Footer& footer, const FlashPackOptions& options) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < specs.size(); ++i) places[specs[i].name] = i;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : footer.tensors) {
    if (previous != nullptr && previous->dtype == tensor.dtype) {
      ASSERT_LE(previous->offset, tensor.offset);
      const bool earlier = places[previous->name] < places[tensor.name];
      const bool sorted = previous->nbytes > tensor.nbytes || (previous->nbytes == tensor.nbytes && earlier);
      ASSERT_TRUE(options.keep_order ? earlier : sorted);
    }
    previous = &tensor;
  }
}

// Every flip of one bit, and characters that mean something in a footer.
std::string changes_of(char byte) {
  std::string changes = "\"\\{}[],:0123456789-.eE \n";
  changes += '\0';
  for (int bit = 0; bit < 8; ++bit) changes += static_cast<char>(byte ^ (1 << bit));
  return changes;
}

const char* const kGolden[] = {"shapes", "names", "align_7", "empty_blocks", "name_order"};

std::string golden(const char* name) {
  return golden_file(std::string("flashpack/") + name + ".flashpack");
}

TEST(FlashPackProperty, random_layouts_survive_encoding_and_parsing) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<TensorSpec> specs = random.specs(30);
    const FlashPackOptions options = random.options();
    Metadata metadata;
    for (std::uint64_t i = random.below(4); i > 0; --i) metadata[random.name()] = random.name();
    const FilePlan plan = flashpack::encode(specs, metadata, options);
    const std::string file = file_of(plan, specs);
    const Footer footer = parse_flashpack(file);
    EXPECT_EQ(footer.metadata, metadata);
    ASSERT_NO_FATAL_FAILURE(expect_same(specs, plan, footer));
    ASSERT_NO_FATAL_FAILURE(expect_consistent(footer, payload_of(file, footer)));
    ASSERT_NO_FATAL_FAILURE(expect_aligned(specs, plan, options));
    ASSERT_NO_FATAL_FAILURE(expect_ordered(specs, footer, options));
  }
}

TEST(FlashPackProperty, the_version_and_the_blocks_follow_from_the_dtypes) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Random random(seed);
    const std::vector<TensorSpec> specs = random.specs(6);
    std::set<DType> dtypes;
    for (const TensorSpec& spec : specs) dtypes.insert(spec.dtype);
    const Footer footer = parse_flashpack(file_of(flashpack::encode(specs, {}, random.options()), specs));
    ASSERT_EQ(footer.blocks.size(), dtypes.size());
    ASSERT_EQ(footer.version, dtypes.size() == 1 ? 3U : 4U);
  }
}

TEST(FlashPackProperty, the_planned_order_is_the_parsed_one) {
  // So a list of checksums means the same in both.
  for (unsigned seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const std::vector<TensorSpec> specs = random.specs(20);
    const FilePlan plan = flashpack::encode(specs, {}, random.options());
    const std::string file = file_of(plan, specs);
    const Layout layout = flashpack::parse(MemorySource(file, "f"));
    for (std::size_t i = 0; i < specs.size(); ++i) ASSERT_EQ(specs[plan.order[i]].name, layout.tensors[i].name);
  }
}

TEST(FlashPackProperty, every_truncation_is_refused) {
  for (const char* name : kGolden) {
    const std::string file = golden(name);
    ASSERT_FALSE(file.empty());
    for (std::size_t length = 0; length < file.size(); ++length) {
      EXPECT_NE(test::format_error([&] { parse_flashpack(file.substr(0, length)); }), "no error")
          << name << " " << length;
    }
  }
}

TEST(FlashPackProperty, a_file_that_lost_or_gained_payload_is_refused) {
  for (const char* name : kGolden) {
    const std::string file = golden(name);
    EXPECT_NE(test::format_error([&] { parse_flashpack(file.substr(1)); }), "no error") << name;
    EXPECT_NE(test::format_error([&] { parse_flashpack("x" + file); }), "no error") << name;
  }
}

TEST(FlashPackProperty, every_changed_byte_gives_a_consistent_footer_or_an_error) {
  for (const char* name : kGolden) {
    const std::string file = golden(name);
    ASSERT_FALSE(file.empty());
    for (std::size_t place = payload_of(file, parse_flashpack(file)); place < file.size(); ++place) {
      for (const char value : changes_of(file[place])) {
        std::string changed = file;
        changed[place] = value;
        expect_parsed_or_refused(changed);
        if (HasFatalFailure()) FAIL() << name << ": byte " << place << " as " << static_cast<int>(value);
      }
    }
  }
}

TEST(FlashPackProperty, every_removed_or_doubled_byte_gives_a_consistent_footer_or_an_error) {
  const std::string file = golden("align_7");
  for (std::size_t place = payload_of(file, parse_flashpack(file)); place < file.size(); ++place) {
    expect_parsed_or_refused(std::string(file).erase(place, 1));
    expect_parsed_or_refused(std::string(file).insert(place, 1, file[place]));
  }
}

TEST(FlashPackProperty, a_hundred_thousand_tensors_survive) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 100'000; ++i) {
    specs.push_back(test::make_spec("model.layers." + std::to_string(i) + ".weight",
                                    i % 2 == 0 ? DType::kBF16 : DType::kF32, {2, 1 + i % 3}));
  }
  const FilePlan plan = flashpack::encode(specs, {}, {.align_bytes = 16});
  const std::string file = file_of(plan, specs);
  const Footer footer = parse_flashpack(file);
  expect_same(specs, plan, footer);
}

}  // namespace
}  // namespace penstock
