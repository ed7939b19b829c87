// Creates a container: the request has to be signed.
const [address, account, key, container] = process.argv.slice(1);
const crypto = require("crypto");
const headers = { "x-ms-date": new Date().toUTCString(), "x-ms-version": "2021-08-06" };
const signed = Object.entries(headers).map(([name, value]) => `${name}:${value}`);
const text = ["PUT", ...Array(11).fill(""), ...signed, `/${account}/${account}/${container}`, "restype:container"];
const signature = crypto.createHmac("sha256", Buffer.from(key, "base64")).update(text.join("\n")).digest("base64");
headers.authorization = `SharedKey ${account}:${signature}`;
fetch(`http://${address}/${account}/${container}?restype=container`, { method: "PUT", headers }).then(async (answer) => {
    if (!answer.ok) throw await answer.text();
});
