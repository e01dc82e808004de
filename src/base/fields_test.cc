// A field that is missing in penstock/fields.h would be missing in Python and in JSON without anyone noticing.
#include "penstock/fields.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <utility>

namespace penstock {
namespace {

// Takes the place of any field in `Struct{any, any ...}`.
struct Anything {
  template <typename Field>
  operator Field() const {
    std::abort();  // it is only asked whether this could be called
  }
};

template <typename Struct, std::size_t... kIndex>
constexpr bool has_fields(std::index_sequence<kIndex...>) {
  return requires {
    Struct{(static_cast<void>(kIndex), Anything{})...};
  };
}

// The most initializers that the aggregate takes.
template <typename Struct, std::size_t kMost = 40>
constexpr std::size_t count_fields() {
  if constexpr (kMost == 0 || has_fields<Struct>(std::make_index_sequence<kMost>())) {
    return kMost;
  } else {
    return count_fields<Struct, kMost - 1>();
  }
}

template <typename Struct>
std::size_t count_visited() {
  std::multiset<std::string> names;
  const Struct value{};
  visit_fields(value, [&](const char* name, const auto&) { names.insert(name); });
  for (const std::string& name : names) EXPECT_EQ(names.count(name), 1) << name;
  return names.size();
}

struct ThreeFields {
  int a;
  std::string b;
  std::optional<double> c;
};
static_assert(count_fields<ThreeFields>() == 3);

template <typename Struct>
class Fields : public testing::Test {};

using Structs =
    testing::Types<IoOptions, LoadOptions, FlashPackOptions, TorchOptions, SaveOptions, StreamOptions, VerifyOptions,
                   SealOptions, SealedFile, SealReport, Stats, StreamStats, Throughput, VerifiedTensor, VerifyReport,
                   FileDiagnosis, Machine, DeviceInfo, Devices, Advice, Diagnosis>;
TYPED_TEST_SUITE(Fields, Structs);

TYPED_TEST(Fields, every_field_is_listed_once) {
  EXPECT_EQ(count_visited<TypeParam>(), count_fields<TypeParam>());
}

TEST(ForecastFields, those_of_its_statistics_stand_among_its_own) {
  EXPECT_EQ(count_visited<Forecast>(), count_fields<Forecast>() - 1 + count_fields<Stats>());
}

TEST(ConvertFields, those_of_its_statistics_stand_before_its_own) {
  EXPECT_EQ(count_visited<ConvertStats>(), count_fields<Stats>() + 1);
}

TEST(OptionFields, a_visitor_can_change_them) {
  IoOptions options;
  visit_fields(options, [](const std::string& name, auto& field) {
    if constexpr (std::is_same_v<decltype(field), unsigned&>) field = name == "threads" ? 3 : 5;
  });
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.queue_depth, 5);
}

}  // namespace
}  // namespace penstock
