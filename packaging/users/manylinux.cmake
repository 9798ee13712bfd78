# Included by project() of native/reader in wheels that ./dev wheel makes (CMAKE_PROJECT_INCLUDE):
# they run with glibc 2.28, and bring their libstdc++, which a container may lack or have older.
set(BRAIDFS_OLD_GLIBC ${CMAKE_CURRENT_LIST_DIR}/old_glibc.cpp)
set(BRAIDFS_OLD_LINK -static-libstdc++ -Wl,--exclude-libs,ALL)
# Before 2.34 threads were in a library of their own.
list(APPEND BRAIDFS_OLD_LINK -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -Wl,--pop-state)
foreach(name IN ITEMS pthread_create pthread_join pthread_once pthread_sigmask __pthread_key_create
        pthread_cond_clockwait stat)
  list(APPEND BRAIDFS_OLD_LINK -Wl,--wrap=${name})
endforeach()
cmake_language(DEFER CALL target_sources _braidfs_reader PRIVATE ${BRAIDFS_OLD_GLIBC})
cmake_language(DEFER CALL target_link_options _braidfs_reader PRIVATE ${BRAIDFS_OLD_LINK})
