#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <tutti/store/store.hpp>

namespace tutti::c10d_door {

/// A store over one of c10d, through a connection of its own. A call that waits asks again and
/// again, because c10d's client lets one thread at a time speak.
std::shared_ptr<Store> make_store(const c10::intrusive_ptr<::c10d::Store>& store);

}  // namespace tutti::c10d_door
