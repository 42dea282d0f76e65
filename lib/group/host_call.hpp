#pragma once

#include "group/call.hpp"
