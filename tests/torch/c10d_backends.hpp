#pragma once

namespace tutti::test {

/// True on a thread, which is a rank: it cannot use nccl.
extern thread_local bool without_nccl;

}  // namespace tutti::test
