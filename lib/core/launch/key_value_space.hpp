#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::internal {

/// The key-value space that a launcher gives the processes of a job, for one exchange between all
/// of them. Errors of every function are Error, with what was asked and answered.
class KeyValueSpace {
 public:
  virtual ~KeyValueSpace() = default;
  /// The number of letters that a value may have.
  virtual std::size_t most_letters() = 0;
  /// Publishes a value without white space. Other ranks see it after wait_for_all().
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Waits for all ranks. @throws Error timeout.
  virtual void wait_for_all() = 0;
  /// A value that rank 0 has published.
  virtual std::string get(const std::string& key) = 0;

 protected:
  /// The advice at the end of error texts: the settings that replace the space.
  static constexpr const char* instead =
      "set TUTTI_STORE, or MASTER_ADDR and MASTER_PORT (the host of rank 0)";
};

}  // namespace tutti::internal
