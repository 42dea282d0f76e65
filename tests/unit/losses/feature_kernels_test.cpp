#include "losses/features/feature_kernels.hpp"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/features.hpp>

#include "kernels/kernel_target.hpp"
#include "losses/features/feature_rows.hpp"
#include "losses/features/gemm.hpp"

// The kernels and products of losses over features, in the form of each instruction set.

namespace tutti::internal::losses {
namespace {

constexpr std::size_t kernel_rows = 5;
constexpr std::size_t kernel_columns = 128;

template <typename T>
struct KernelInputs {
  AlignedArray<T> k{kernel_rows * kernel_columns};
  AlignedArray<T> columns{3 * kernel_columns};
  std::vector<T> rows = std::vector<T>(3 * kernel_rows);

  explicit KernelInputs(double size) {
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> numbers(-1, 1);
    for (std::size_t i = 0; i < kernel_rows * kernel_columns; ++i)
      k[i] = static_cast<T>(size * numbers(random));
    // Padding, and a row without a pair.
    for (std::size_t i = 0; i < kernel_rows; ++i)
      for (std::size_t j = i == 2 ? 0 : 100; j < kernel_columns; ++j)
        k[i * kernel_columns + j] = no_pair<T>;
    for (std::size_t j = 0; j < 3 * kernel_columns; ++j)
      columns[j] = static_cast<T>(size + std::abs(numbers(random)));
    for (auto& x : rows) x = static_cast<T>(size + std::abs(numbers(random)));
  }
  Block<T> copy(AlignedArray<T>& to) const {
    std::copy_n(k.data(), kernel_rows * kernel_columns, to.data());
    return {to.data(), kernel_rows, kernel_columns, kernel_columns};
  }
};

template <typename T>
void expect_near_all(const AlignedArray<T>& got, const AlignedArray<T>& want, double error) {
  double most = 0;
  for (std::size_t i = 0; i < kernel_rows * kernel_columns; ++i)
    most = std::max(most, std::abs(static_cast<double>(want[i])));
  for (std::size_t i = 0; i < kernel_rows * kernel_columns; ++i)
    ASSERT_NEAR(got[i], want[i], error * most) << "element " << i;
}

template <typename T>
void expect_plain_kernels(const FeatureKernels<T>& kernels) {
  const auto& plain = scalar_feature_kernels<T>();
  const double error = 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (const double size : {0.01, 1.0, 30.0}) {
    const KernelInputs<T> in(size);
    AlignedArray<T> a(kernel_rows * kernel_columns);
    AlignedArray<T> b(kernel_rows * kernel_columns);
    for (const double scale : {0.5, 20.0}) {
      SCOPED_TRACE(testing::Message() << "size " << size << ", scale " << scale);
      std::vector<LogSum> got(kernel_rows);
      std::vector<LogSum> want(kernel_rows);
      got[1] = want[1] = {size, 3};
      got[3] = want[3] = {-2 * size, 3};
      kernels.log_sum(in.copy(a), scale, got.data());
      plain.log_sum(in.copy(b), scale, want.data());
      for (std::size_t i = 0; i < kernel_rows; ++i) {
        EXPECT_EQ(got[i].most, want[i].most);
        EXPECT_NEAR(got[i].sum, want[i].sum, error * scale * want[i].sum);
      }
      EXPECT_EQ(got[2].sum, 0);

      SoftmaxTerms<T> terms{.scale = static_cast<T>(scale),
                            .floor = static_cast<T>(0.01),
                            .row_center = in.rows.data(),
                            .row_weight = in.rows.data() + kernel_rows,
                            .column_center = in.columns.data(),
                            .column_weight = in.columns.data() + kernel_columns};
      const auto expect_softmax = [&] {
        kernels.softmax(in.copy(a), terms);
        plain.softmax(in.copy(b), terms);
        expect_near_all(a, b, error * scale);
      };
      expect_softmax();
      terms.row_factor = in.rows.data() + 2 * kernel_rows;
      terms.column_factor = in.columns.data() + 2 * kernel_columns;
      expect_softmax();

      std::vector<double> sums(2 * kernel_rows, 0.5);
      std::vector<double> expected(2 * kernel_rows, 0.5);
      LogisticTerms<T> logistic{.scale = static_cast<T>(scale),
                                .bias = static_cast<T>(-1.5),
                                .row_weight = in.rows.data(),
                                .column_weight = in.columns.data(),
                                .softplus = sums.data(),
                                .slopes = sums.data() + kernel_rows};
      kernels.logistic(in.copy(a), logistic);
      logistic.softplus = expected.data();
      logistic.slopes = expected.data() + kernel_rows;
      plain.logistic(in.copy(b), logistic);
      expect_near_all(a, b, error);
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_NEAR(sums[i], expected[i], error * std::abs(expected[i])) << i;
      EXPECT_EQ(sums[2], 0.5);
    }
    std::vector<double> got(67, 1);
    std::vector<double> want(67, 1);
    kernels.add(got.data(), in.columns.data(), 67);
    plain.add(want.data(), in.columns.data(), 67);
    EXPECT_EQ(got, want);
  }
}

TEST(FeatureKernels, OfEveryInstructionSetAgreeWithThePlainOnes) {
  for (const auto target : kernel_targets()) {
    SCOPED_TRACE(target);
    choose_kernel_target(target);
    const auto* const of_floats = &feature_kernels<float>();
    const auto* const of_doubles = &feature_kernels<double>();
    choose_kernel_target("");
    expect_plain_kernels(*of_floats);
    expect_plain_kernels(*of_doubles);
  }
}

// Centers far below the products, as after a product that was rounded otherwise.
template <typename T>
void expect_capped_softmax(const FeatureKernels<T>& kernels) {
  AlignedArray<T> k(kernel_columns);
  std::vector<T> rows{1, 2, 1};  // Center, weight, factor.
  AlignedArray<T> columns(3 * kernel_columns);
  for (std::size_t j = 0; j < kernel_columns; ++j) {
    columns[j] = 1;
    columns[kernel_columns + j] = 3;
    columns[2 * kernel_columns + j] = T{1e10F};
  }
  SoftmaxTerms<T> terms{.scale = 1000,
                        .row_center = &rows[0],
                        .row_weight = &rows[1],
                        .column_center = columns.data(),
                        .column_weight = columns.data() + kernel_columns};
  const auto expect_all = [&](T want) {
    std::fill_n(k.data(), kernel_columns, T{5});
    kernels.softmax({k.data(), 1, kernel_columns, kernel_columns}, terms);
    for (std::size_t j = 0; j < kernel_columns; ++j) ASSERT_EQ(k[j], want) << j;
  };
  expect_all(5);
  terms.row_factor = &rows[2];
  terms.column_factor = columns.data() + 2 * kernel_columns;
  expect_all(5);
}

TEST(FeatureKernels, ASoftmaxIsAtMostItsWeight) {
  expect_capped_softmax(scalar_feature_kernels<float>());
  expect_capped_softmax(scalar_feature_kernels<double>());
  for (const auto target : kernel_targets()) {
    SCOPED_TRACE(target);
    choose_kernel_target(target);
    const auto* const of_floats = &feature_kernels<float>();
    const auto* const of_doubles = &feature_kernels<double>();
    choose_kernel_target("");
    expect_capped_softmax(*of_floats);
    expect_capped_softmax(*of_doubles);
  }
}

// log(1 + x) of numbers so small that 1 + x is 1.
TEST(FeatureKernels, SoftplusOfFarNegativeLogitsKeepsItsDigits) {
  AlignedArray<float> k(kernel_columns);
  std::fill_n(k.data(), kernel_columns, -1.0F);
  const float weight = 1;
  const AlignedArray<float> none(kernel_columns);
  std::fill_n(none.data(), kernel_columns, 0.0F);
  double sums[2] = {0, 0};
  feature_kernels<float>().logistic({k.data(), 1, kernel_columns, kernel_columns},
                                    {.scale = 50,
                                     .row_weight = &weight,
                                     .column_weight = none.data(),
                                     .softplus = &sums[0],
                                     .slopes = &sums[1]});
  const double want = kernel_columns * std::exp(-50.0);
  EXPECT_NEAR(sums[0], want, 1e-6 * want);
  EXPECT_NEAR(sums[1], want, 1e-6 * want);
}

template <typename T>
void expect_product(EigenProduct* product, std::int64_t m, std::int64_t n, std::int64_t k,
                    bool transposed) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> numbers(-1, 1);
  const auto b_stride = (transposed ? k : n) + 3;
  std::vector<T> a(static_cast<std::size_t>(m * (k + 1)));
  std::vector<T> b(static_cast<std::size_t>((transposed ? n : k) * b_stride));
  std::vector<T> c(static_cast<std::size_t>(m * (n + 2)), T{7});
  for (auto* all : {&a, &b})
    for (auto& x : *all) x = static_cast<T>(numbers(random));
  product({.dtype = dtype_of<T>,
           .b_transposed = transposed,
           .m = m,
           .n = n,
           .k = k,
           .a = a.data(),
           .b = b.data(),
           .c = c.data(),
           .a_stride = k + 1,
           .b_stride = b_stride,
           .c_stride = n + 2});
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t d = 0; d < k; ++d)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * (k + 1) + d)]) *
               static_cast<double>(
                   b[static_cast<std::size_t>(transposed ? j * b_stride + d : d * b_stride + j)]);
      ASSERT_NEAR(c[static_cast<std::size_t>(i * (n + 2) + j)], sum,
                  static_cast<double>(k) * std::numeric_limits<T>::epsilon());
    }
    ASSERT_EQ(c[static_cast<std::size_t>(i * (n + 2) + n)], T{7});
  }
}

TEST(FeatureKernels, ProductsOfEveryInstructionSetAreThose) {
  if (eigen_product() == nullptr) GTEST_SKIP() << "a build without Eigen";
  for (const auto target : kernel_targets()) {
    SCOPED_TRACE(target);
    choose_kernel_target(target);
    auto* const product = eigen_product();
    choose_kernel_target("");
    for (const bool transposed : {false, true})
      for (const std::int64_t size : {1, 3, 17, 100}) {
        expect_product<float>(product, size, 70, 33, transposed);
        expect_product<double>(product, 5, size, 33, transposed);
        expect_product<float>(product, 128, 50, size, transposed);
      }
  }
}

}  // namespace
}  // namespace tutti::internal::losses
