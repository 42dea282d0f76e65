#pragma once

#include <linux/filter.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config.hpp"

namespace tutti::backend::ucx {

/// The TCP listeners of a worker, through which only the ranks of the group get data to UCX. UCX
/// trusts all that it reads: 72 bytes of an unauthenticated peer would end the process.
///
/// The kernel drops what arrives at the listeners from before UCX listens until the worker is made,
/// and from then on all data, so an unauthenticated peer can connect, and no more. Each rank tells
/// its peers through the store from which addresses it connects to them, before UCX sends anything;
/// only connections from these addresses are admitted. Then nothing answers at the listeners any
/// more: UCX makes all its TCP connections with its endpoints.
class Gate {
 public:
  /// IP addresses with ports, as text.
  using Addresses = std::vector<std::string>;
  /// Addresses, each with the rank of the peer that has it.
  using Ranks = std::map<std::string, int>;

  /// `make` makes the worker, on this thread. @throws Error unsupported if the listeners cannot be
  /// filtered here; what `make` throws.
  Gate(const Transports& transports, const std::function<void()>& make);

  /// The addresses at which the worker listens. Empty without TCP.
  const Addresses& listeners() const noexcept { return listeners_; }
  /// The addresses from which this process connects to the listeners of each rank.
  static std::map<int, Addresses> connected_to(const Ranks& listeners);
  /// A rank to whose listeners a connection of this process has ended.
  static std::optional<int> lost(const Ranks& listeners);
  /// Lets the data of the accepted connections from these addresses through, and removes them from
  /// `announced`. True if none is left.
  bool admit(Ranks& announced);
  /// Makes the listeners answer nothing. False while the kernel cannot do it, or UCX has not yet
  /// accepted all connections that the kernel has made.
  bool shut() const;
  /// Ends the accepted connections that have not been admitted. UCX reads nothing of them.
  void refuse_others() const;

 private:
  friend int before_listen(int descriptor) noexcept;
  void guard(int descriptor);
  bool filter_listeners(std::span<const sock_filter> steps) const;

  Addresses listeners_;
  Addresses admitted_;
  int error_ = 0;  // Of the kernel, which does not filter.
};

/// True if the address is of the loopback interface.
bool is_loopback(std::string_view address);

}  // namespace tutti::backend::ucx
