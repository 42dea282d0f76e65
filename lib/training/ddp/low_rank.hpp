#pragma once

#include <cstdint>
#include <functional>

// The algebra of PowerSGD, for float and double. Thin matrices are stored by columns: [rank,
// length]. Results have the same bits on every machine, because ranks compute the same factors
// without comparing them.

namespace tutti::ddp {

/// p [rank, rows] = m q, where m is [rows, columns] and q [rank, columns].
template <typename T>
void multiply(const T* m, std::int64_t rows, std::int64_t columns, const T* q, int rank, T* p);

/// q [rank, columns] = m^T p.
template <typename T>
void multiply_transposed(const T* m, std::int64_t rows, std::int64_t columns, const T* p, int rank,
                         T* q);

/// out [columns] = row `row` of p q^T.
template <typename T>
void product_row(const T* p, std::int64_t rows, std::int64_t row, const T* q, std::int64_t columns,
                 int rank, T* out);

/// Makes the columns orthonormal one by one (Gram-Schmidt). Divides by norm + epsilon. With epsilon
/// 0, a column that is linearly dependent on earlier columns becomes 0.
/// @param refill  writes new values to the column with the given number, which is 0 or not finite;
/// may be empty.
template <typename T>
void orthogonalize(T* columns, std::int64_t length, int rank, double epsilon,
                   const std::function<void(int)>& refill = {});

}  // namespace tutti::ddp
