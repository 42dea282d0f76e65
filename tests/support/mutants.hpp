#pragma once

#include <functional>
#include <memory>

#include <tutti/backend/backend.hpp>

// Deliberately broken backends. The conformance suite has to fail over each of them; otherwise it
// would not detect the same fault in a real backend. tests/conformance/run_mutant.py runs the suite
// with the mutant's name in TUTTI_TEST_MUTANT.

namespace tutti::test {

using Decorate = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;

/// The mutant that TUTTI_TEST_MUTANT names, for GroupOptions::decorate of one rank; empty when
/// there is none. Throws for an unknown name.
Decorate mutant_of_this_process(int rank, int size);

}  // namespace tutti::test
