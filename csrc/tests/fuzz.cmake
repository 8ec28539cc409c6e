# The ops under calls made up at random; .ci/fuzz runs more of them, watched by sanitizers.
add_executable(fuzz_ops fuzz_ops.cc fuzz_run.cc fuzz_case.cc fuzz_linear.cc fuzz_top_k.cc fuzz_head.cc
                        fuzz_attention.cc fuzz_attention_mistakes.cc fuzz_layer.cc fuzz_conv.cc fuzz_states.cc fuzz_state_conv.cc fuzz_delta.cc fuzz_ssm.cc
                        fuzz_experts.cc fuzz_rows.cc fake_ort.cc fake_memory.cc ../register.cc)
target_link_libraries(fuzz_ops PRIVATE edge_rt_base edge_rt_kernels)
add_test(NAME fuzz_ops COMMAND fuzz_ops --runs 10000)
set_tests_properties(fuzz_ops PROPERTIES COST 25)
