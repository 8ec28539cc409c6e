# Fails if an object compiled for one instruction set defines a weak symbol: an inline or template function with
# external linkage, of which the linker keeps one copy for the whole library. It may keep the AVX-512 one, and a CPU
# without it would then crash far away from any kernel. Use: cmake -DNM=nm "-DOBJECTS=a.o;b.o" -P check_isa_objects.cmake
set(checked 0)
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --defined-only --demangle ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  if(NOT symbols MATCHES "::k[A-Z]")
    message(FATAL_ERROR "${object} holds no kernels")
  endif()
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
  # The name that the compiler gives to the frame handler of C++ is the same in every object, and is data.
  list(FILTER weak EXCLUDE REGEX "DW\\.ref\\.")
  if(weak)
    string(JOIN "\n" lines ${weak})
    message(FATAL_ERROR "${object} shares code with other instruction sets:\n${lines}")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "No objects were given")
endif()
message(STATUS "${checked} objects define nothing that another one could")
