# Builds for another system with the clang of the Python package `ziglang`, which holds the headers and libraries of
# many. EDGE_RT_ZIG is its program, EDGE_RT_ZIG_TARGET one of
#   x86_64-linux-gnu.2.28, aarch64-linux-gnu.2.28   (the number: the oldest glibc that it may run on)
#   x86_64-windows-gnu, aarch64-macos.11.0
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES EDGE_RT_ZIG EDGE_RT_ZIG_TARGET)
if(NOT EDGE_RT_ZIG OR NOT EDGE_RT_ZIG_TARGET MATCHES "^(x86_64|aarch64)-(linux|windows|macos)")
  message(FATAL_ERROR "EDGE_RT_ZIG and EDGE_RT_ZIG_TARGET must be given; got '${EDGE_RT_ZIG}', '${EDGE_RT_ZIG_TARGET}'.")
endif()
set(CMAKE_SYSTEM_PROCESSOR "${CMAKE_MATCH_1}")
set(system_linux Linux)
set(system_windows Windows)
set(system_macos Darwin)
set(CMAKE_SYSTEM_NAME "${system_${CMAKE_MATCH_2}}")

set(CMAKE_CXX_COMPILER "${EDGE_RT_ZIG}" c++ -target "${EDGE_RT_ZIG_TARGET}")
# Headers and libraries are zig's own; those of the machine belong to another system.
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# Looking at a compiler by linking whole programs would build a C++ runtime for every target first.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

# zig knows -mcpu with names of its own for what other compilers call -march=armv8.2-a+dotprod+i8mm+fp16.
set(isa_flags_neon_dotprod -mcpu=generic+v8_2a+dotprod+fullfp16)
set(isa_flags_neon_i8mm -mcpu=generic+v8_2a+dotprod+i8mm+fullfp16)

if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  # CMake demands both; nothing is rewritten after linking, so a program that fails is never noticed.
  find_program(EDGE_RT_FALSE false REQUIRED)
  set(CMAKE_INSTALL_NAME_TOOL "${EDGE_RT_FALSE}")
  set(CMAKE_OSX_SYSROOT "")
  set(CMAKE_SKIP_RPATH ON)
endif()
