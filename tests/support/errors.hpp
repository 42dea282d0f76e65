#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/error.hpp>

namespace tutti::test {

/// Runs `call`, which has to throw an Error with this code whose what() contains all `texts`.
/// Returns it for a closer look; a test failure returns an Error of another code.
inline Error expect_error(const std::vector<Errc>& codes, const std::vector<std::string>& texts,
                          const std::function<void()>& call) {
  const auto describe = [&] {
    std::string all;
    for (const Errc code : codes) all += (all.empty() ? "" : " or ") + std::string(name_of(code));
    return all;
  };
  try {
    call();
  } catch (const Error& error) {
    bool expected = false;
    for (const Errc code : codes) expected = expected || error.code() == code;
    EXPECT_TRUE(expected) << "expected " << describe() << ", got " << name_of(error.code()) << ": "
                          << error.what();
    for (const std::string& text : texts)
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << "no '" << text << "' in: " << error.what();
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected " << describe()
                  << ", got an exception of another type: " << error.what();
    return Error(Errc::backend, error.what());
  }
  ADD_FAILURE() << "expected " << describe() << ", but nothing was thrown";
  return Error(Errc::backend, "nothing was thrown");
}

inline Error expect_error(Errc code, const std::vector<std::string>& texts,
                          const std::function<void()>& call) {
  return expect_error(std::vector{code}, texts, call);
}

}  // namespace tutti::test
