// Each line of stdin is an attempt of attempt.py as JSON; each line of stdout tells what came of it.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	servedMax  = 60 * time.Second
	refusedMax = 10 * time.Second
)

type attempt struct {
	Name        string   `json:"name"`
	Bootstrap   string   `json:"bootstrap"`
	Topic       string   `json:"topic"`
	Authority   string   `json:"authority"`
	Certificate string   `json:"certificate"`
	Mechanism   string   `json:"mechanism"`
	Username    string   `json:"username"`
	Password    string   `json:"password"`
	Token       string   `json:"token"`
	IsRefused   bool     `json:"is_refused"`
	Values      []string `json:"values"`
}

type outcome struct {
	Consumed []string `json:"consumed,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var each attempt
		told, err := outcome{}, json.Unmarshal(lines.Bytes(), &each)
		if err == nil && each.IsRefused {
			told, err = refused(each)
		} else if err == nil {
			told, err = served(each)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, each.Name, err)
			os.Exit(1)
		}
		line, _ := json.Marshal(told)
		fmt.Println(string(line))
	}
}

func mechanism(a attempt) sasl.Mechanism {
	login := scram.Auth{User: a.Username, Pass: a.Password}
	switch a.Mechanism {
	case "PLAIN":
		return plain.Auth{User: a.Username, Pass: a.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return login.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return login.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: a.Token}.AsMechanism()
	}
}

func client(a attempt, more ...kgo.Opt) (*kgo.Client, error) {
	pem, err := os.ReadFile(a.Authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if a.Certificate != "" {
		own, err := tls.LoadX509KeyPair(a.Certificate, a.Certificate)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	options := []kgo.Opt{kgo.SeedBrokers(a.Bootstrap), kgo.DialTLSConfig(config)}
	if a.Mechanism != "" {
		options = append(options, kgo.SASL(mechanism(a)))
	}
	return kgo.NewClient(append(options, more...)...)
}

func served(a attempt) (outcome, error) {
	limited, over := context.WithTimeout(context.Background(), servedMax)
	defer over()
	ownID := a.Topic + " " + a.Name
	producer, err := client(a)
	if err != nil {
		return outcome{}, err
	}
	defer producer.Close()
	alone := &kgo.Record{Topic: a.Topic, Value: []byte(a.Values[0])}
	if err := producer.ProduceSync(limited, alone).FirstErr(); err != nil {
		return outcome{}, err
	}
	transactional, err := client(a, kgo.TransactionalID(ownID))
	if err != nil {
		return outcome{}, err
	}
	defer transactional.Close()
	if err := transactional.BeginTransaction(); err != nil {
		return outcome{}, err
	}
	within := &kgo.Record{Topic: a.Topic, Value: []byte(a.Values[1])}
	if err := transactional.ProduceSync(limited, within).FirstErr(); err != nil {
		return outcome{}, err
	}
	if err := transactional.EndTransaction(limited, kgo.TryCommit); err != nil {
		return outcome{}, err
	}
	consumer, err := client(
		a,
		kgo.ConsumerGroup(ownID),
		kgo.ConsumeTopics(a.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		return outcome{}, err
	}
	defer consumer.Close()
	left := map[string]bool{a.Values[0]: true, a.Values[1]: true}
	told := outcome{}
	for len(left) > 0 {
		fetches := consumer.PollFetches(limited)
		if err := fetches.Err(); err != nil {
			return outcome{}, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if value := string(r.Value); left[value] {
				delete(left, value)
				told.Consumed = append(told.Consumed, value)
			}
		})
	}
	return told, nil
}

func refused(a attempt) (outcome, error) {
	limited, over := context.WithTimeout(context.Background(), refusedMax)
	defer over()
	asking, err := client(a, kgo.RequestRetries(0))
	if err != nil {
		return outcome{}, err
	}
	defer asking.Close()
	failure := asking.Ping(limited)
	if failure == nil {
		return outcome{}, nil
	}
	kind := failure
	for inner := errors.Unwrap(kind); inner != nil; inner = errors.Unwrap(kind) {
		kind = inner
	}
	return outcome{Error: fmt.Sprintf("%T: %v", kind, failure)}, nil
}
