// A self-signed certificate for the host "test", in files of a folder of its own.
#pragma once
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "net/socket.h"
#include "net/tls.h"

namespace braidfs::net {

class Certificate {
 public:
  Certificate() {
    char name[] = "/tmp/braidfs-certificate-XXXXXX";
    folder_ = mkdtemp(name);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                  EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(made.get(), X509_get_subject_name(made.get()));
    X509_set_pubkey(made.get(), key.get());
    X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:test");
    X509_add_ext(made.get(), names, -1);
    X509_EXTENSION_free(names);
    X509_sign(made.get(), key.get(), EVP_sha256());
    write(certificate_file(), [&](FILE* file) { return PEM_write_X509(file, made.get()); });
    write(key_file(), [&](FILE* file) {
      return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
  ~Certificate() { std::filesystem::remove_all(folder_); }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  std::string certificate_file() const { return folder_ + "/crt"; }
  std::string key_file() const { return folder_ + "/key"; }

  // Both ends of a local connection whose handshake is done.
  std::pair<Socket, Socket> sockets(UniqueFd one, UniqueFd other) const {
    std::string fault;
    const auto ours = TlsContext::client(certificate_file(), fault);
    const auto theirs = TlsContext::server(certificate_file(), key_file(), fault);
    EXPECT_TRUE(ours && theirs) << fault;
    auto client = ours->open(one.get(), "test");
    auto server = theirs->open(other.get(), "");
    bool done = false;
    for (int round = 0; round < 10 && !done; ++round) {
      const int first = client->shake();
      const int second = server->shake();
      done = first == 0 && second == 0;
    }
    EXPECT_TRUE(done) << client->fault() << server->fault();
    return {Socket(std::move(one), std::move(client)), Socket(std::move(other), std::move(server))};
  }

 private:
  template <typename Write>
  static void write(const std::string& path, Write write) {
    FILE* file = std::fopen(path.c_str(), "w");
    EXPECT_EQ(write(file), 1);
    std::fclose(file);
  }

  std::string folder_;
};

}  // namespace braidfs::net
