#pragma once

// The exported functions of a shared library that jump to a function of a table. For x86-64.

/// Defines `function`, which jumps to where its slot points.
#define TUTTI_TRAMPOLINE(function)                                                           \
  extern "C" [[gnu::visibility("hidden")]] void* tutti_slot_##function;                      \
  void* tutti_slot_##function = nullptr;                                                     \
  asm(".pushsection .text\n.globl " #function "\n.type " #function ", @function\n" #function \
      ":\n  jmp *tutti_slot_" #function "(%rip)\n.size " #function ", . - " #function        \
      "\n.popsection");

#define TUTTI_FILL_SLOT(function, target) tutti_slot_##function = reinterpret_cast<void*>(target);
